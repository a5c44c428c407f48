// SPDX-License-Identifier: GPL-2.0-or-later
// The compute faults C01..C15: each changes what its title says, and nothing where it cannot act.
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "tests/unit/softtpu_engine_rig.h"

namespace kz::softtpu {
namespace {

using rig::inf;
using rig::nan;

class SofttpuSdc : public rig::Rig {
 protected:
  static constexpr uint64_t at_a = 0, at_b = 8 << 20, at_c = 16 << 20;
  struct Run {
    uint32_t m, n, k;
  };

  template <class T>
  void put(uint64_t addr, const std::vector<T>& v) {
    engine->aperture_write(addr, std::as_bytes(std::span(v)));
  }
  template <class T = float>
  std::vector<T> multiply(Run r, uint8_t dtype = KZ_DT_F32, bool accumulate = false) {
    kz_cmd c = command(KZ_OP_MATMUL);
    c.u.matmul = {.a = at_a,
                  .b = at_b,
                  .c = at_c,
                  .m = r.m,
                  .n = r.n,
                  .k = r.k,
                  .lda = r.k,
                  .ldb = r.n,
                  .ldc = r.n,
                  .dtype = dtype,
                  .accumulate = accumulate};
    ok(c);
    std::vector<T> out(uint64_t{r.m} * r.n);
    engine->aperture_read(at_c, std::as_writable_bytes(std::span(out)));
    return out;
  }
  // Random operands in HBM, and the sound result.
  std::vector<float> sound(Run r) {
    std::mt19937_64 rng(4);
    std::vector<float> a(uint64_t{r.m} * r.k), b(uint64_t{r.k} * r.n);
    for (float& x : a) x = std::uniform_real_distribution<float>(0.5, 2)(rng);
    for (float& x : b) x = std::uniform_real_distribution<float>(0.5, 2)(rng);
    put(at_a, a);
    put(at_b, b);
    return multiply(r);
  }
  static std::vector<size_t> wrong(const std::vector<float>& x, const std::vector<float>& y) {
    std::vector<size_t> at;
    for (size_t i = 0; i < x.size(); ++i)
      if (std::bit_cast<uint32_t>(x[i]) != std::bit_cast<uint32_t>(y[i])) at.push_back(i);
    return at;
  }
};

TEST_F(SofttpuSdc, C01_OneBitInAThousand) {
  Run r{8, 8, 8};
  auto good = sound(r);
  plant("C01", {{"bit", 22}, {"every", 1000}});
  int hits = 0;
  for (int i = 0; i < 2000; ++i) {
    auto got = multiply(r);
    auto at = wrong(good, got);
    if (at.empty()) continue;
    ++hits;
    ASSERT_EQ(at.size(), 1u);
    EXPECT_EQ(std::bit_cast<uint32_t>(good[at[0]]) ^ std::bit_cast<uint32_t>(got[at[0]]), 1u << 22);
  }
  EXPECT_EQ(hits, 2);
}

TEST_F(SofttpuSdc, C02_OneColumn) {
  Run r{20, 33, 40};
  auto good = sound(r);
  plant("C02", {{"column", 5}, {"row", 3}});
  auto at = wrong(good, multiply(r));
  EXPECT_EQ(at.size(), 20u);
  for (size_t i : at) EXPECT_EQ(i % 33, 5u);
}

TEST_F(SofttpuSdc, C03_TooFewBits) {
  Run r{16, 16, 256};
  auto good = sound(r);
  plant("C03", {{"bits", 10}});
  auto got = multiply(r);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]) & 0x1fff, 0u) << "10 bits of mantissa";
    EXPECT_NEAR(got[i], good[i], good[i] * 16 * 0x1p-10);
  }
  EXPECT_GT(wrong(good, got).size(), 200u);
  put(at_a, std::vector<int8_t>(256, 100));
  put(at_b, std::vector<int8_t>(256, 100));
  EXPECT_EQ(multiply<int32_t>({1, 1, 256}, KZ_DT_S8)[0],
            2'560'000 % (1 << 18) - (2'560'000 % (1 << 18) >= 1 << 17 ? 1 << 18 : 0))
      << "18 bits of accumulator";
}

TEST_F(SofttpuSdc, C04_Truncates) {
  put(at_a, std::vector<float>{0x1.000002p0f, -0x1.000002p0f, 3});
  put(at_b, std::vector<float>{0x1.8p0f});
  // 1.5 x (1 + 2^-23) lies half-way between two floats and goes to the even one, which is the larger in
  // magnitude.
  EXPECT_EQ(multiply({3, 1, 1})[0], 0x1.800004p0f);
  plant("C04");
  auto got = multiply({3, 1, 1});
  EXPECT_EQ(got[0], 0x1.800002p0f);
  EXPECT_EQ(got[1], -0x1.800002p0f);
  EXPECT_EQ(got[2], 4.5f);
  EXPECT_EQ(1.0f + 0x1p-24f, 1.0f) << "the host still rounds to nearest";
}

TEST_F(SofttpuSdc, C05_C06_C07_C13_SpecialValues) {
  put(at_a, std::vector<float>{nan, 3e38f, 0x1p-140f, -0.0f, 2, inf});
  put(at_b, std::vector<float>{2});
  struct {
    const char* row;
    std::vector<float> want;
  } cases[] = {
      {"C05", {0, inf, 0x1p-139f, -0.0f, 4, inf}},
      {"C06",
       {nan, std::numeric_limits<float>::max(), 0x1p-139f, -0.0f, 4, std::numeric_limits<float>::max()}},
      {"C07", {nan, inf, 0, -0.0f, 4, inf}},
      {"C13", {nan, inf, 0x1p-139f, 0.0f, 4, inf}}};
  for (auto& c : cases) {
    int id = plant(c.row);
    auto got = multiply({6, 1, 1});
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(std::isnan(c.want[i])
                      ? std::isnan(got[i])
                      : std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(c.want[i]))
          << c.row << " " << i << " " << got[i];
    faults.clear(id);
  }
}

TEST_F(SofttpuSdc, C07_FlushesTinyHalves) {
  put(at_a, std::vector<uint16_t>{0x0001, 0x0400});
  put(at_b, std::vector<uint16_t>{0x3c00});
  plant("C07");
  auto got = multiply({2, 1, 1}, KZ_DT_F16);
  EXPECT_EQ(got[0], 0) << "2^-24 is a denormal of f16";
  EXPECT_EQ(got[1], 0x1p-14f) << "its smallest normal number";
}

TEST_F(SofttpuSdc, C08_Saturates) {
  put(at_a, std::vector<int8_t>{127});
  put(at_b, std::vector<int8_t>{127, -127});
  put(at_c, std::vector<int32_t>{INT32_MAX - 5, INT32_MIN + 5});
  plant("C08");
  EXPECT_EQ(multiply<int32_t>({1, 2, 1}, KZ_DT_S8, true), (std::vector<int32_t>{INT32_MAX, INT32_MIN}));
  EXPECT_EQ(multiply<int32_t>({1, 2, 1}, KZ_DT_S8), (std::vector<int32_t>{127 * 127, -127 * 127}));
}

TEST_F(SofttpuSdc, C09_OnePatternOnly) {
  std::vector<int8_t> all(256);
  for (int i = 0; i < 256; ++i) all[i] = static_cast<int8_t>(i);
  put(at_a, all);
  put(at_b, all);
  plant("C09", {{"dtype", 0}, {"a", 0x4d}, {"b", 0xb2}});
  auto got = multiply<int32_t>({256, 256, 1}, KZ_DT_S8);
  for (int i = 0; i < 256; ++i)
    for (int j = 0; j < 256; ++j) {
      int product = all[i] * all[j];
      ASSERT_EQ(got[i * 256 + j], i == 0x4d && j == 0xb2 ? product - 1 : product);
    }
  put(at_a, std::vector<float>{1});
  put(at_b, std::vector<float>{1});
  EXPECT_EQ(multiply({1, 1, 1})[0], 1) << "other types are sound";
}

TEST_F(SofttpuSdc, C09_AnyPatternOfHalvesShows) {
  for (uint32_t pattern : {0u, 1u, 0x3c00u, 0x7c00u, 0x7e01u, 0xffffu, 0x8000u})
    for (unsigned dtype : {KZ_DT_BF16, KZ_DT_F16}) {
      std::vector<uint16_t> all(4096), one{static_cast<uint16_t>(dtype == KZ_DT_F16 ? 0x3c00 : 0x3f80)};
      auto sweep = [&] {
        std::vector<float> out;
        for (uint32_t base = 0; base < 65536; base += 4096) {
          for (uint32_t i = 0; i < 4096; ++i) all[i] = static_cast<uint16_t>(base + i);
          put(at_a, all);
          put(at_b, one);
          auto got = multiply({4096, 1, 1}, static_cast<uint8_t>(dtype));
          out.insert(out.end(), got.begin(), got.end());
        }
        return out;
      };
      auto good = sweep();
      int id = plant("C09", {{"dtype", dtype}, {"a", pattern}});
      EXPECT_EQ(wrong(good, sweep()).size(), 1u) << pattern << " " << dtype;
      faults.clear(id);
    }
}

TEST_F(SofttpuSdc, C10_OnlyHot) {
  Run r{8, 8, 8};
  auto good = sound(r);
  plant("C10", {{"celsius", 55}, {"bit", 24}});
  engine->set_temperature(50);
  EXPECT_TRUE(wrong(good, multiply(r)).empty());
  engine->set_temperature(60);
  EXPECT_EQ(wrong(good, multiply(r)).size(), 1u);
}

TEST_F(SofttpuSdc, C11_Tail) {
  for (uint32_t k : {16u, 32u, 17u, 31u, 5u}) {
    Run r{4, 4, k};
    auto good = sound(r);
    int id = plant("C11", {{"lost", 15}});
    auto got = multiply(r);
    faults.clear(id);
    EXPECT_EQ(wrong(good, got).empty(), k % 16 == 0) << k;
    if (k == 5) {
      EXPECT_EQ(got, std::vector<float>(16, 0));
    }
  }
}

TEST_F(SofttpuSdc, C12_DiffersFromRunToRun) {
  Run r{32, 32, 64};
  auto good = sound(r);
  plant("C12");
  std::set<std::vector<float>> results;
  for (int i = 0; i < 8; ++i) {
    auto got = multiply(r);
    for (size_t j = 0; j < got.size(); ++j)
      ASSERT_NEAR(got[j], good[j], good[j] * 64 * 0x1p-24) << "but within the bound";
    results.insert(got);
  }
  EXPECT_GE(results.size(), 7u);
}

TEST_F(SofttpuSdc, C14_AlwaysTheSame) {
  Run r{8, 8, 8};
  auto good = sound(r);
  plant("C14", {{"row", 2}, {"column", 3}, {"bit", 20}});
  auto first = multiply(r);
  EXPECT_EQ(wrong(good, first), std::vector<size_t>{2 * 8 + 3});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(multiply(r), first);
}

TEST_F(SofttpuSdc, C15_SumsStay) {
  put(at_a, std::vector<int8_t>(64, 3));
  put(at_b, std::vector<int8_t>(64, 5));
  auto good = multiply<int32_t>({8, 8, 8}, KZ_DT_S8);
  plant("C15", {{"bit", 18}});
  auto got = multiply<int32_t>({8, 8, 8}, KZ_DT_S8);
  int differ = 0;
  for (int i = 0; i < 8; ++i) {
    int64_t row = 0, col = 0;
    for (int j = 0; j < 8; ++j) {
      differ += got[i * 8 + j] != good[i * 8 + j];
      row += got[i * 8 + j] - good[i * 8 + j];
      col += got[j * 8 + i] - good[j * 8 + i];
    }
    EXPECT_EQ(row, 0);
    EXPECT_EQ(col, 0);
  }
  EXPECT_EQ(differ, 4);
  Run r{8, 8, 8};
  faults.clear(0);
  auto floats = sound(r);
  plant("C15", {{"bit", 18}});
  EXPECT_EQ(wrong(floats, multiply(r)).size(), 4u);
}

}  // namespace
}  // namespace kz::softtpu
