// SPDX-License-Identifier: GPL-2.0-or-later
// The units against independent arithmetic: Eigen in binary64, integers in 64 bits, and definitions.
#include <Eigen/Dense>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "tests/unit/softtpu_engine_rig.h"
#include "tools/softtpu/compute.h"

namespace kz::softtpu {
namespace {

using rig::hbm_bytes;
using rig::inf;
using rig::page;

// binary16 by its definition (IEEE 754-2019, 3.4).
double half_value(uint16_t h) {
  int exponent = (h >> 10) & 31, fraction = h & 0x3ff;
  double sign = (h & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(SofttpuConvert, EveryHalf) {
  for (uint32_t i = 0; i < 65536; ++i) {
    auto h = static_cast<uint16_t>(i);
    float f = f16_to_f32(h);
    double want = half_value(h);
    ASSERT_TRUE(std::isnan(want) ? std::isnan(f) : static_cast<double>(f) == want) << i;
    ASSERT_EQ(std::signbit(f), (h & 0x8000) != 0) << i;
  }
}

TEST(SofttpuConvert, EveryBf16) {
  for (uint32_t i = 0; i < 65536; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16_to_f32(static_cast<uint16_t>(i))), i << 16);
}

TEST(SofttpuConvert, WidenAgreesWithTheSingleConversions) {
  std::vector<uint16_t> in(65536);
  for (uint32_t i = 0; i < 65536; ++i) in[i] = static_cast<uint16_t>(i);
  std::vector<float> out(65536);
  auto bytes = std::as_bytes(std::span(in));
  widen(KZ_DT_F16, bytes.data(), out.data(), out.size());
  for (uint32_t i = 0; i < 65536; ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(f16_to_f32(in[i]))) << i;
  widen(KZ_DT_BF16, bytes.data(), out.data(), out.size());
  for (uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), i << 16);
  widen(KZ_DT_S8, bytes.data(), out.data(), 512);
  for (uint32_t i = 0; i < 256; ++i) ASSERT_EQ(out[2 * i], static_cast<float>(static_cast<int8_t>(i)));
}

TEST(SofttpuCompute, SelfCheckHolds) { EXPECT_TRUE(compute_self_check()); }

class SofttpuMatmul : public rig::Rig {
 protected:
  static constexpr uint64_t at_a = 0, at_b = 16 << 20, at_c = 32 << 20;
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  static kz_cmd command_for(uint8_t dtype, uint32_t m, uint32_t n, uint32_t k) {
    kz_cmd c = command(KZ_OP_MATMUL);
    c.u.matmul = {.a = at_a,
                  .b = at_b,
                  .c = at_c,
                  .m = m,
                  .n = n,
                  .k = k,
                  .lda = k,
                  .ldb = n,
                  .ldc = n,
                  .dtype = dtype};
    return c;
  }
  template <class T>
  void put(uint64_t addr, const std::vector<T>& v) {
    engine->aperture_write(addr, std::as_bytes(std::span(v)));
  }
  template <class T>
  std::vector<T> get(uint64_t addr, uint64_t n) {
    std::vector<T> v(n);
    engine->aperture_read(addr, std::as_writable_bytes(std::span(v)));
    return v;
  }
  // Random finite operand elements of a type, and their values.
  std::pair<std::vector<std::byte>, std::vector<double>> operand(uint8_t dtype, uint64_t n) {
    std::vector<std::byte> raw(n * dtype_bytes(dtype));
    std::vector<double> value(n);
    for (uint64_t i = 0; i < n; ++i) {
      float f = std::uniform_real_distribution<float>(-2, 2)(rng_);
      uint32_t bits = std::bit_cast<uint32_t>(f);
      switch (dtype) {
        case KZ_DT_S8: {
          auto s = static_cast<int8_t>(rng_());
          raw[i] = static_cast<std::byte>(s);
          value[i] = s;
          break;
        }
        case KZ_DT_BF16: {
          auto b = static_cast<uint16_t>(bits >> 16);
          std::memcpy(&raw[2 * i], &b, 2);
          value[i] = std::bit_cast<float>(uint32_t{b} << 16);
          break;
        }
        case KZ_DT_F16: {
          auto h = static_cast<uint16_t>(rng_() & 0xbfff);  // |x| < 2, denormals too
          std::memcpy(&raw[2 * i], &h, 2);
          value[i] = half_value(h);
          break;
        }
        default:
          std::memcpy(&raw[4 * i], &bits, 4), value[i] = f;
      }
    }
    return {raw, value};
  }
  // |error| <= (K + 1) 2^-24 sum |a||b|, as KZ_NUM_ACC_F32 promises.
  void compare(const std::vector<double>& a, const std::vector<double>& b, uint64_t m, uint64_t n, uint64_t k,
               const std::vector<float>& got, const std::vector<double>* before = nullptr) {
    Eigen::Map<const Matrix> ea(a.data(), m, k), eb(b.data(), k, n);
    Matrix want = ea * eb, size = ea.cwiseAbs() * eb.cwiseAbs();
    for (uint64_t i = 0; i < m * n; ++i) {
      double start = before != nullptr ? (*before)[i] : 0;
      double bound = std::ldexp(static_cast<double>(k + 1), -24) * (size.data()[i] + std::abs(start));
      ASSERT_LE(std::abs(got[i] - (want.data()[i] + start)), bound + 1e-37)
          << i << " of " << m << "x" << n << "x" << k;
    }
  }
  std::mt19937_64 rng_{9};
};

TEST_F(SofttpuMatmul, FloatsAgainstEigen) {
  const uint32_t shapes[][3] = {{1, 1, 1},    {1, 1, 17},      {3, 5, 7},      {16, 16, 16},
                                {1, 128, 64}, {128, 1, 64},    {33, 65, 127},  {64, 64, 1024},
                                {130, 70, 1}, {100, 100, 333}, {256, 256, 256}};
  for (uint8_t dtype : {KZ_DT_BF16, KZ_DT_F16, KZ_DT_F32})
    for (auto [m, n, k] : shapes) {
      auto [ra, va] = operand(dtype, uint64_t{m} * k);
      auto [rb, vb] = operand(dtype, uint64_t{k} * n);
      put(at_a, ra);
      put(at_b, rb);
      put(at_c, std::vector<float>(uint64_t{m} * n, std::nanf("")));  // must not leak into the result
      ok(command_for(dtype, m, n, k));
      compare(va, vb, m, n, k, get<float>(at_c, uint64_t{m} * n));
    }
}

TEST_F(SofttpuMatmul, IntegersAreExact) {
  for (auto [m, n, k] : {std::array<uint32_t, 3>{1, 1, 1},
                         {3, 5, 7},
                         {17, 19, 1023},
                         {9, 8, 1024},
                         {8, 9, 1025},
                         {5, 6, 4096}}) {
    auto [ra, va] = operand(KZ_DT_S8, uint64_t{m} * k);
    auto [rb, vb] = operand(KZ_DT_S8, uint64_t{k} * n);
    put(at_a, ra);
    put(at_b, rb);
    ok(command_for(KZ_DT_S8, m, n, k));
    auto got = get<int32_t>(at_c, uint64_t{m} * n);
    for (uint64_t i = 0; i < m; ++i)
      for (uint64_t j = 0; j < n; ++j) {
        int64_t sum = 0;
        for (uint64_t x = 0; x < k; ++x)
          sum += static_cast<int64_t>(va[i * k + x]) * static_cast<int64_t>(vb[x * n + j]);
        ASSERT_EQ(got[i * n + j], sum) << m << " " << n << " " << k;
      }
  }
}

TEST_F(SofttpuMatmul, ExtremeIntegersAreExact) {
  for (int8_t x : {int8_t{-128}, int8_t{127}}) {
    put(at_a, std::vector<int8_t>(4096, x));
    put(at_b, std::vector<int8_t>(4096, -128));
    ok(command_for(KZ_DT_S8, 1, 1, 4096));
    EXPECT_EQ(get<int32_t>(at_c, 1)[0], 4096 * x * -128);
  }
}

TEST_F(SofttpuMatmul, IntegersWrapModulo2To32) {
  put(at_a, std::vector<int8_t>{127, 127});
  put(at_b, std::vector<int8_t>{127, 127});
  for (int32_t start : {INT32_MAX, INT32_MIN, -1, 0}) {
    put(at_c, std::vector<int32_t>{start});
    kz_cmd c = command_for(KZ_DT_S8, 1, 1, 2);
    c.u.matmul.accumulate = 1;
    ok(c);
    EXPECT_EQ(get<uint32_t>(at_c, 1)[0], static_cast<uint32_t>(start) + 2u * 127 * 127);
  }
}

TEST_F(SofttpuMatmul, StridesAndGaps) {
  const uint32_t m = 9, n = 7, k = 5;
  for (uint8_t dtype : {KZ_DT_S8, KZ_DT_BF16, KZ_DT_F16, KZ_DT_F32})
    for (bool slow : {false, true}) {
      int id = slow ? plant("M20", {{"addr_frac", double(at_c) / hbm_bytes}, {"celsius", 60}}) : 0;
      auto [ra, va] = operand(dtype, uint64_t{m} * 8);
      auto [rb, vb] = operand(dtype, uint64_t{k} * 11);
      put(at_a, ra);
      put(at_b, rb);
      put(at_c, std::vector<uint32_t>(m * 10, 0xdeadbeef));
      kz_cmd c = command_for(dtype, m, n, k);
      c.u.matmul.lda = 8;
      c.u.matmul.ldb = 11;
      c.u.matmul.ldc = 10;
      ok(c);
      auto got = get<uint32_t>(at_c, m * 10);
      for (uint32_t i = 0; i < m; ++i)
        for (uint32_t j = 0; j < 10; ++j) {
          if (j >= n) {
            ASSERT_EQ(got[i * 10 + j], 0xdeadbeef) << "a gap was written";
            continue;
          }
          double sum = 0;
          for (uint32_t x = 0; x < k; ++x) sum += va[i * 8 + x] * vb[x * 11 + j];
          double v = dtype == KZ_DT_S8 ? static_cast<int32_t>(got[i * 10 + j])
                                       : std::bit_cast<float>(got[i * 10 + j]);
          ASSERT_NEAR(v, sum, 1e-5);
        }
      if (slow) faults.clear(id);
    }
}

TEST_F(SofttpuMatmul, AccumulatesIntoC) {
  auto [ra, va] = operand(KZ_DT_F32, 20 * 30);
  auto [rb, vb] = operand(KZ_DT_F32, 30 * 10);
  auto [rc, vc] = operand(KZ_DT_F32, 20 * 10);
  put(at_a, ra);
  put(at_b, rb);
  put(at_c, rc);
  kz_cmd c = command_for(KZ_DT_F32, 20, 10, 30);
  c.u.matmul.accumulate = 1;
  ok(c);
  compare(va, vb, 20, 10, 30, get<float>(at_c, 200), &vc);
}

TEST_F(SofttpuMatmul, OverlappingOperandsAreReadFirst) {
  auto [ra, va] = operand(KZ_DT_F32, 64 * 64);
  auto [rb, vb] = operand(KZ_DT_F32, 64 * 64);
  for (bool over_a : {true, false}) {
    put(at_a, ra);
    put(at_b, rb);
    kz_cmd c = command_for(KZ_DT_F32, 64, 64, 64);
    c.u.matmul.c = over_a ? at_a : at_b + 256;
    ok(c);
    compare(va, vb, 64, 64, 64, get<float>(c.u.matmul.c, 64 * 64));
  }
}

// What the numeric contract declares, in the values where it matters.
TEST_F(SofttpuMatmul, KeepsItsContract) {
  for (uint8_t dtype : {KZ_DT_BF16, KZ_DT_F16, KZ_DT_F32})
    EXPECT_EQ(*engine->describe(KZ_REG_NUMERIC(dtype)),
              uint32_t{KZ_NUM_RNE | KZ_NUM_DENORM_IN | KZ_NUM_DENORM_OUT | KZ_NUM_NAN | KZ_NUM_INF |
                       KZ_NUM_SIGNED_ZERO | KZ_NUM_DETERMINISTIC | KZ_NUM_ACC_F32});
  EXPECT_EQ(*engine->describe(KZ_REG_NUMERIC(KZ_DT_S8)), uint32_t{KZ_NUM_WRAP | KZ_NUM_DETERMINISTIC});
  auto outer = [&](std::vector<float> a, std::vector<float> b) {
    put(at_a, a);
    put(at_b, b);
    ok(command_for(KZ_DT_F32, static_cast<uint32_t>(a.size()), static_cast<uint32_t>(b.size()), 1));
    return get<float>(at_c, a.size() * b.size());
  };
  auto zero = outer({-0.0f, 0.0f, 3}, {1, -0.0f});
  EXPECT_TRUE(std::signbit(zero[0]));
  EXPECT_FALSE(std::signbit(zero[1])) << "-0 x -0";
  EXPECT_TRUE(std::signbit(zero[3])) << "0 x -0";
  EXPECT_EQ(outer({0x1p-149f}, {3})[0], 0x1.8p-148f) << "denormals in and out";
  EXPECT_EQ(outer({0x1.fffffep127f}, {2})[0], inf);
  EXPECT_TRUE(std::isnan(outer({std::nanf("")}, {0})[0]));
  EXPECT_EQ(outer({0x1.000002p0f}, {0x1.000002p0f})[0], 0x1.000004p0f) << "rounds to nearest";
  EXPECT_EQ(outer({0x1.000001p0f + 0x1p-23f}, {1.5f})[0],
            static_cast<float>(double(0x1.000001p0f + 0x1p-23f) * 1.5));
}

// The widened tiny halves are normal numbers: their products must come out.
TEST_F(SofttpuMatmul, EveryHalfTimesOne) {
  std::vector<uint16_t> all(4096), one{0x3c00};
  for (uint32_t base = 0; base < 65536; base += 4096) {
    for (uint32_t i = 0; i < 4096; ++i) all[i] = static_cast<uint16_t>(base + i);
    put(at_a, all);
    put(at_b, one);
    ok(command_for(KZ_DT_F16, 4096, 1, 1));
    auto got = get<float>(at_c, 4096);
    for (uint32_t i = 0; i < 4096; ++i) {
      double want = half_value(all[i]);
      ASSERT_TRUE(std::isnan(want) ? std::isnan(got[i]) : got[i] == want) << base + i;
    }
  }
}

TEST_F(SofttpuMatmul, SameBitsWhenRunsCompete) {
  auto [ra, va] = operand(KZ_DT_F32, 256 * 256);
  put(at_a, ra);
  put(at_b, ra);
  ok(command_for(KZ_DT_F32, 256, 256, 256));
  auto want = get<uint32_t>(at_c, 256 * 256);
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (uint16_t q = 0; q < 4; ++q)
    threads.emplace_back([&, q] {
      kz_cmd c = command_for(KZ_DT_F32, 256, 256, 256);
      c.u.matmul.c = at_c + (q + 1) * (1 << 20);
      for (int i = 0; i < 20; ++i) {
        bad += run(c, 0, q).status != KZ_ST_OK;
        bad += get<uint32_t>(c.u.matmul.c, 256 * 256) != want;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(bad, 0);
}

TEST_F(SofttpuMatmul, CancelledBeforeItStarts) {
  std::atomic<bool> cancel{true};
  EXPECT_EQ(engine->execute(command_for(KZ_DT_F32, 512, 512, 512), {0, 0, &cancel}).status, KZ_ST_ABORTED);
}

// ---- vector unit ----

class SofttpuVector : public SofttpuMatmul {
 protected:
  std::vector<float> apply(uint8_t op, const std::vector<float>& a, const std::vector<float>& b = {},
                           uint32_t cols = 0) {
    put(at_a, a);
    if (!b.empty()) put(at_b, b);
    kz_cmd c = command(KZ_OP_VECTOR);
    c.u.vector = {.a = at_a,
                  .b = b.empty() ? 0 : at_b,
                  .dst = at_c,
                  .n = static_cast<uint32_t>(a.size()),
                  .cols = cols,
                  .op = op};
    ok(c);
    return get<float>(at_c, op == KZ_VEC_SUM ? a.size() / cols : a.size());
  }
  std::vector<float> random(uint64_t n) {
    std::vector<float> v(n);
    for (float& f : v) f = std::normal_distribution<float>(0, 3)(rng_);
    return v;
  }
};

TEST_F(SofttpuVector, Elementwise) {
  auto a = random(100'001), b = random(100'001);
  auto add = apply(KZ_VEC_ADD, a, b), sub = apply(KZ_VEC_SUB, a, b), mul = apply(KZ_VEC_MUL, a, b);
  auto max = apply(KZ_VEC_MAX, a, b), relu = apply(KZ_VEC_RELU, a), gelu = apply(KZ_VEC_GELU, a);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(add[i], a[i] + b[i]);
    ASSERT_EQ(sub[i], a[i] - b[i]);
    ASSERT_EQ(mul[i], a[i] * b[i]);
    ASSERT_EQ(max[i], std::max(a[i], b[i]));
    ASSERT_EQ(relu[i], std::max(a[i], 0.0f));
    double want = 0.5 * a[i] * std::erfc(-a[i] / std::sqrt(2.0));
    ASSERT_NEAR(gelu[i], want, std::abs(want) * 1e-6 + 1e-7);
  }
}

TEST_F(SofttpuVector, SpecialValues) {
  const float nan = std::nanf("");
  auto relu = apply(KZ_VEC_RELU, {nan, -inf, inf, -0.0f, -1});
  EXPECT_TRUE(std::isnan(relu[0]));
  EXPECT_EQ(std::vector<float>(relu.begin() + 1, relu.end()), (std::vector<float>{0, inf, 0, 0}));
  auto max = apply(KZ_VEC_MAX, {nan, 1, -0.0f, -inf}, {1, nan, 0.0f, -inf});
  EXPECT_TRUE(std::isnan(max[0]) && std::isnan(max[1]));
  EXPECT_FALSE(std::signbit(max[2]));
  EXPECT_EQ(max[3], -inf);
  auto gelu = apply(KZ_VEC_GELU, {nan, inf, -inf, 0});
  EXPECT_TRUE(std::isnan(gelu[0]));
  EXPECT_EQ(gelu[1], inf);
  EXPECT_EQ(gelu[2], 0);
  auto soft = apply(KZ_VEC_SOFTMAX, {1, nan, 2, 3, 1000, 0, -inf, 0}, {}, 4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(soft[i])) << "NaN takes its row";
  EXPECT_EQ(soft[4], 1);
  EXPECT_EQ(soft[6], 0);
}

TEST_F(SofttpuVector, Rows) {
  const uint32_t cols = 37, rows = 50;
  auto a = random(cols * rows);
  Eigen::Map<const Eigen::Matrix<float, rows, cols, Eigen::RowMajor>> m(a.data());
  auto soft = apply(KZ_VEC_SOFTMAX, a, {}, cols), norm = apply(KZ_VEC_LAYERNORM, a, {}, cols);
  auto sum = apply(KZ_VEC_SUM, a, {}, cols);
  for (uint32_t r = 0; r < rows; ++r) {
    Eigen::ArrayXd row = m.row(r).cast<double>();
    Eigen::ArrayXd e = (row - row.maxCoeff()).exp();
    Eigen::ArrayXd centred = row - row.mean();
    double scale = std::sqrt(centred.square().mean() + 1e-5);
    ASSERT_NEAR(sum[r], row.sum(), 1e-4);
    for (uint32_t j = 0; j < cols; ++j) {
      ASSERT_NEAR(soft[r * cols + j], e[j] / e.sum(), 1e-6);
      ASSERT_NEAR(norm[r * cols + j], centred[j] / scale, 1e-5);
    }
  }
}

TEST_F(SofttpuVector, InPlaceAndShiftedOverlap) {
  auto a = random(1000), b = random(1000);
  for (uint64_t dst : {at_a, at_b, at_a + 4, at_b + 8}) {
    put(at_a, a);
    put(at_b, b);
    kz_cmd c = command(KZ_OP_VECTOR);
    c.u.vector = {.a = at_a, .b = at_b, .dst = dst, .n = 1000, .cols = 0, .op = KZ_VEC_ADD};
    ok(c);
    auto got = get<float>(dst, 1000);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(got[i], a[i] + b[i]) << dst;
  }
}

}  // namespace
}  // namespace kz::softtpu
