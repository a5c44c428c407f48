// SPDX-License-Identifier: GPL-2.0-or-later
// The golden must accept what IEEE 754 and plain loops give, and see each kind of fault. Right values are
// computed here by naive loops, or are known numbers.
#include "tests/compute/golden.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>

#include "tests/compute/operands.h"
#include "tests/compute/vector_golden.h"

namespace kz::compute {
namespace {

constexpr uint32_t all_float = KZ_NUM_RNE | KZ_NUM_DENORM_IN | KZ_NUM_DENORM_OUT | KZ_NUM_NAN | KZ_NUM_INF |
                               KZ_NUM_SIGNED_ZERO | KZ_NUM_DETERMINISTIC | KZ_NUM_ACC_F32;

// A sound device, slowly: f32 operations in order of k.
std::vector<uint32_t> device(const Job& job, bool wrap = true) {
  auto out = job.c;
  for (uint32_t i = 0; i < job.m(); ++i)
    for (uint32_t j = 0; j < job.n(); ++j) {
      uint32_t& c = out[size_t{i} * job.ldc + j];
      if (job.a.dtype() == Dtype::s8) {
        int64_t sum = job.accumulate ? static_cast<int32_t>(c) : 0;
        for (uint32_t k = 0; k < job.k(); ++k)
          sum += static_cast<int64_t>(job.a.get(i, k)) * static_cast<int64_t>(job.b.get(k, j));
        c = wrap ? static_cast<uint32_t>(sum)
                 : static_cast<uint32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
        continue;
      }
      float sum = job.accumulate ? std::bit_cast<float>(c) : 0;
      for (uint32_t k = 0; k < job.k(); ++k) {
        float term = static_cast<float>(job.a.get(i, k)) * static_cast<float>(job.b.get(k, j));
        sum = k == 0 && !job.accumulate ? term : sum + term;
      }
      c = std::bit_cast<uint32_t>(sum);
    }
  return out;
}

class Types : public testing::TestWithParam<Dtype> {
 protected:
  uint32_t contract() const {
    return GetParam() == Dtype::s8 ? KZ_NUM_WRAP | KZ_NUM_DETERMINISTIC : all_float;
  }
  std::mt19937_64 rng_{7};
};

INSTANTIATE_TEST_SUITE_P(All, Types, testing::Values(Dtype::s8, Dtype::bf16, Dtype::f16, Dtype::f32));

TEST_P(Types, SoundResultsAreRight) {
  for (const Dims& d : awkward_shapes())
    for (Pattern p : all_patterns()) {
      Job job("sound", make(GetParam(), d.m, d.k, p, rng_), make(GetParam(), d.k, d.n, Pattern::random, rng_),
              3);
      auto wrong = Golden(job, contract()).judge(device(job));
      EXPECT_FALSE(wrong) << to_string(p) << " " << d.m << "x" << d.n << "x" << d.k << ": " << wrong->text();
    }
}

TEST_P(Types, ExactJobsAreExactInAnyOrder) {
  for (uint32_t k : {1u, 7u, 64u, 1000u}) {
    Job job = exact_job("exact", GetParam(), {5, 6, k}, rng_);
    EXPECT_FALSE(Golden(job, contract()).judge(device(job)));
    double magnitude = 0;
    for (uint32_t x = 0; x < k; ++x) magnitude += std::fabs(job.a.get(0, x) * job.b.get(x, 0));
    EXPECT_LE(magnitude, 0x1p24);
  }
}

TEST_P(Types, EverySingleFlippedBitOfAnExactResultShows) {
  Job job = exact_job("exact", GetParam(), {4, 4, 32}, rng_);
  Golden golden(job, contract());
  auto good = device(job);
  for (unsigned bit = 0; bit < 32; ++bit) {
    auto bad = good;
    bad[6] ^= 1u << bit;
    auto wrong = golden.judge(bad);
    ASSERT_TRUE(wrong) << "bit " << bit;
    EXPECT_EQ(wrong->count, 1u);
    EXPECT_EQ(wrong->where, Where::element);
    EXPECT_EQ(wrong->i, 1u);
    EXPECT_EQ(wrong->j, 2u);
  }
}

TEST_P(Types, AMissingTailIsNamed) {
  Job job = exact_job("tail", GetParam(), {4, 4, 21}, rng_);
  Job cut("cut", Matrix(GetParam(), 4, 19), Matrix(GetParam(), 19, 4));
  cut.a.fill([&](uint32_t i, uint32_t j) { return job.a.get(i, j); });
  cut.b.fill([&](uint32_t i, uint32_t j) { return job.b.get(i, j); });
  auto wrong = Golden(job, contract()).judge(device(cut));
  ASSERT_TRUE(wrong);
  EXPECT_EQ(wrong->where, Where::tail);
}

TEST_P(Types, ColumnsAndRowsAreNamed) {
  Job job = exact_job("places", GetParam(), {20, 40, 8}, rng_);
  Golden golden(job, contract());
  auto column = device(job), row = column;
  for (uint32_t i = 0; i < 20; ++i) column[i * 40 + 5] = column[i * 40 + 21] = 0;
  for (uint32_t j = 0; j < 40; ++j) row[3 * 40 + j] = 0;
  EXPECT_EQ(golden.judge(column)->where, Where::column);
  EXPECT_EQ(golden.judge(row)->where, Where::row);
  EXPECT_EQ(golden.judge(std::vector<uint32_t>(800, 0x12345678))->where, Where::all);
}

TEST(Golden, WritingBetweenRowsShows) {
  std::mt19937_64 rng(1);
  Job job("gap", make(Dtype::f32, 3, 3, Pattern::ramp, rng), make(Dtype::f32, 3, 3, Pattern::ramp, rng), 2);
  auto got = device(job);
  EXPECT_FALSE(Golden(job, all_float).judge(got));
  got[4] = 0;
  EXPECT_TRUE(Golden(job, all_float).judge(got));
}

Job single(double a, double b) {
  Job job("single", Matrix(Dtype::f32, 1, 1), Matrix(Dtype::f32, 1, 1));
  job.a.set(0, 0, a);
  job.b.set(0, 0, b);
  return job;
}

std::optional<Wrong> judge(const Job& job, float got, uint32_t contract = all_float) {
  return Golden(job, contract).judge(std::vector{std::bit_cast<uint32_t>(got)});
}

constexpr double inf = std::numeric_limits<double>::infinity();

TEST(Golden, NanMustStay) {
  Job job = single(NAN, 1);
  EXPECT_FALSE(judge(job, NAN));
  EXPECT_EQ(judge(job, 0)->what, What::nan);
  EXPECT_FALSE(judge(job, 0, all_float & ~uint32_t{KZ_NUM_NAN}));
  EXPECT_EQ(judge(single(2, 2), NAN)->what, What::nan);
}

TEST(Golden, OverflowIsInfinityOrTheLargestAsDeclared) {
  Job job = single(-1e30, 1e30);
  EXPECT_FALSE(judge(job, -INFINITY));
  EXPECT_EQ(judge(job, -FLT_MAX)->what, What::inf);
  EXPECT_EQ(judge(job, INFINITY)->what, What::inf);
  EXPECT_FALSE(judge(job, -FLT_MAX, all_float & ~uint32_t{KZ_NUM_INF}));
  EXPECT_TRUE(judge(single(inf, 1), FLT_MAX));
  EXPECT_TRUE(judge(single(1, 1), INFINITY));
}

TEST(Golden, DenormalsStayOrVanishAsDeclared) {
  Job job = single(0x1p-140, 0.5);
  job.exact = true;
  EXPECT_FALSE(judge(job, 0x1p-141f));
  EXPECT_EQ(judge(job, 0)->what, What::denormal);
  EXPECT_FALSE(judge(job, 0, all_float & ~uint32_t{KZ_NUM_DENORM_IN | KZ_NUM_DENORM_OUT}));
}

TEST(Golden, TheSignOfZeroCounts) {
  EXPECT_FALSE(judge(single(-0.0, 3), -0.0f));
  EXPECT_EQ(judge(single(-0.0, 3), 0.0f)->what, What::sign);
  EXPECT_FALSE(judge(single(-0.0, 3), 0.0f, all_float & ~uint32_t{KZ_NUM_SIGNED_ZERO}));
}

TEST(Golden, TiesGoToEven) {
  Job job("tie", Matrix(Dtype::f32, 1, 2), Matrix(Dtype::f32, 2, 1));
  job.exact = true;
  job.a.set(0, 0, 0x1p24);
  job.b.set(0, 0, 1);
  job.b.set(1, 0, 1);
  for (auto [add, want, truncated] :
       {std::tuple{1.0, 16777216.0f, 16777216.0f}, {3.0, 16777220.0f, 16777218.0f}}) {
    job.a.set(0, 1, add);
    EXPECT_FALSE(judge(job, want));
    if (truncated != want) {
      EXPECT_EQ(judge(job, truncated)->what, What::rounding);
    }
  }
}

TEST(Golden, WrapIsNotSaturation) {
  Job job("edge", Matrix(Dtype::s8, 1, 1), Matrix(Dtype::s8, 1, 1));
  job.a.set(0, 0, 100);
  job.b.set(0, 0, 1);
  job.accumulate = true;
  job.c[0] = static_cast<uint32_t>(INT32_MAX - 50);
  auto wraps = std::vector{static_cast<uint32_t>(INT32_MIN + 49)};
  auto saturates = std::vector{static_cast<uint32_t>(INT32_MAX)};
  EXPECT_FALSE(Golden(job, KZ_NUM_WRAP).judge(wraps));
  EXPECT_EQ(Golden(job, KZ_NUM_WRAP).judge(saturates)->what, What::wrap);
  EXPECT_FALSE(Golden(job, 0).judge(saturates));
  EXPECT_EQ(Golden(job, 0).judge(wraps)->what, What::wrap);
}

TEST(Matrix, KnowsTheTypes) {
  struct Case {
    Dtype t;
    double value;
    uint32_t bits;
  };
  for (auto [t, value, bits] : {Case{Dtype::bf16, 1.0, 0x3f80},
                                {Dtype::bf16, -2.5, 0xc020},
                                {Dtype::f16, 1.0, 0x3c00},
                                {Dtype::f16, 65504, 0x7bff},
                                {Dtype::f16, 0x1p-24, 0x0001},
                                {Dtype::f32, -0.0, 0x80000000},
                                {Dtype::s8, -1, 0xff}}) {
    Matrix m(t, 1, 1);
    m.set(0, 0, value);
    EXPECT_EQ(m.bits(0, 0), bits);
    EXPECT_EQ(m.get(0, 0), value);
  }
}

// Known values: erf(1/sqrt 2) = 0.682689492137..., so gelu(1) = 0.841344746068...
TEST(VectorGolden, KnownValues) {
  std::vector<float> one = {1};
  EXPECT_NEAR(vector_golden(VectorOp::gelu, one, {}, 0)[0].value, 0.841344746068543, 1e-15);
  std::vector<float> pair = {0, std::log(3.0f)};
  auto soft = vector_golden(VectorOp::softmax, pair, {}, 2);
  EXPECT_NEAR(soft[0].value, 0.25, 1e-7);
  EXPECT_NEAR(soft[1].value, 0.75, 1e-7);
  std::vector<float> row = {1, 2, 3};
  auto norm = vector_golden(VectorOp::layernorm, row, {}, 3);
  EXPECT_NEAR(norm[2].value, 1 / std::sqrt(2.0 / 3 + 1e-5), 1e-12);
  EXPECT_EQ(vector_golden(VectorOp::sum, row, {}, 3)[0].value, 6);
}

TEST(VectorGolden, BoundsAreTight) {
  std::vector<float> a = {1.5f}, b = {0.7f};
  auto want = vector_golden(VectorOp::add, a, b, 0)[0];
  float right = 1.5f + 0.7f;
  EXPECT_TRUE(agrees(right, want));
  EXPECT_FALSE(agrees(std::nextafterf(std::nextafterf(right, 9), 9), want));
  EXPECT_TRUE(agrees(NAN, {NAN, 0}));
  EXPECT_FALSE(agrees(0, {NAN, 0}));
  EXPECT_FALSE(agrees(INFINITY, {1, 1}));
}

}  // namespace
}  // namespace kz::compute
