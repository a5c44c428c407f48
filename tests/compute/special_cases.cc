// SPDX-License-Identifier: GPL-2.0-or-later
// The numeric contract where it shows: rounding, accumulator width, NaN, infinity, denormals, zero's sign,
// integer wrap. Each is judged only where the device declares it.
#include <fmt/format.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "tests/compute/operands.h"
#include "tests/compute/rig.h"
#include "tests/harness/test.h"

namespace kz::compute {
namespace {

using namespace test;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

// Float types that declare all bits of `contract`. Skips the test when there are none.
std::vector<Dtype> declaring(Rig& rig, uint32_t contract) {
  auto types = rig.float_types();
  std::erase_if(types, [&](Dtype t) { return (rig.numeric(t) & contract) != contract; });
  if (types.empty()) skip("no type of this device declares it");
  return types;
}

double exp2i(int e) { return std::ldexp(1.0, e); }

// Two products whose sum needs one more bit than f32 has, or more: x 2^12 * 2^12 + y * 1 with x, y that the
// type holds.
Job rounding_job(Dtype t, std::mt19937_64& rng) {
  Job job("round to nearest even", Matrix(t, 64, 2), Matrix(t, 2, 64));
  job.exact = true;
  auto odd = [&](int bits) { return static_cast<double>(rng() % (1u << bits) | 1); };
  for (uint32_t i = 0; i < 64; ++i) {
    double sign = i % 2 ? -1 : 1;
    job.a.set(i, 0, sign * (1 + odd(7) / 128) * exp2i(11));
    job.a.set(i, 1, (i % 3 ? sign : -sign) * odd(4));
    // First products are 2^24 and more, where f32 counts in twos and fours; the second ones are odd.
    job.b.set(0, i, (1 + odd(7) / 128) * exp2i(13));
    job.b.set(1, i, odd(3));
  }
  // Ties, exactly half way: 2^24 + 1 to even below, 2^24 + 3 to even above.
  job.a.set(0, 0, exp2i(12));
  job.b.set(0, 0, exp2i(12));
  job.a.set(0, 1, 1);
  job.b.set(1, 0, 1);
  job.b.set(0, 1, exp2i(12));
  job.b.set(1, 1, 3);
  job.a.set(1, 0, -exp2i(12));
  job.a.set(1, 1, -1);
  return job;
}

KZ_TEST(matmul, rounds_to_nearest_even,
        {.meaning = "sums that do not fit f32 round to nearest, ties to even; truncation shows",
         .level = 2,
         .needs = basics,
         .limit = 10s}) {
  Rig rig(device());
  for (Dtype t : declaring(rig, KZ_NUM_RNE | KZ_NUM_ACC_F32))
    for (int n = 0; n < 8; ++n)
      if (!rig.check(rounding_job(t, rng()))) return;
  if (!rig.has(Dtype::f32) || !(rig.numeric(Dtype::f32) & KZ_NUM_RNE)) return;
  // One product of two f32: 48 bits round to 24.
  Job one("one product", make(Dtype::f32, 128, 1, Pattern::random, rng()),
          make(Dtype::f32, 1, 128, Pattern::random, rng()));
  one.exact = true;
  rig.check(one);
}

KZ_TEST(matmul, accumulates_in_f32,
        {.meaning = "sums of integers up to 2^24 are exact: an accumulator of fewer bits shows",
         .level = 2,
         .needs = basics,
         .limit = 10s}) {
  Rig rig(device());
  for (Dtype t : declaring(rig, KZ_NUM_ACC_F32))
    for (uint32_t k : {2u, 16u, 100u, 256u, 1000u})
      if (!rig.check(exact_job("wide sum", t, {32, 32, k}, rng()))) return;
}

KZ_TEST(
    matmul, nan_and_infinity,
    {.meaning = "NaN and infinity in any operand reach every result they belong to; overflow gives infinity",
     .level = 4,
     .needs = basics,
     .limit = 10s}) {
  Rig rig(device());
  for (Dtype t : declaring(rig, KZ_NUM_NAN)) {
    auto job = [&](const char* name) {
      return Job(name, make(t, 19, 21, Pattern::integers, rng()), make(t, 21, 23, Pattern::integers, rng()));
    };
    Job n = job("NaN");
    n.a.set(3, 20, nan);
    n.b.set(0, 7, -nan);
    if (!rig.check(n)) return;
    Job i = job("infinity");
    for (uint32_t j = 0; j < 23; ++j) i.b.set(5, j, j % 3 ? 2 : j % 2 ? -2 : 0);  // inf * 0 is NaN
    i.a.set(4, 5, inf);
    i.a.set(6, 5, -inf);
    i.a.set(8, 5, inf), i.a.set(8, 6, -inf);
    for (uint32_t j = 0; j < 23; ++j) i.b.set(6, j, 1);
    if (!rig.check(i)) return;
  }
  for (Dtype t : declaring(rig, KZ_NUM_INF)) {
    if (t == Dtype::f16) continue;  // its products cannot leave f32
    Job o("overflow", Matrix(t, 8, 1), Matrix(t, 1, 8));
    for (uint32_t i = 0; i < 8; ++i) {
      o.a.set(i, 0, (i % 2 ? -1.5 : 1.5) * exp2i(100));
      o.b.set(0, i, exp2i(20 + static_cast<int>(i) * 3));  // 2^120 .. 2^141
    }
    if (!rig.check(o)) return;
  }
}

KZ_TEST(matmul, denormals,
        {.meaning = "denormal operands and results keep their value where the device declares that",
         .level = 4,
         .needs = basics,
         .limit = 10s}) {
  Rig rig(device());
  for (Dtype t : declaring(rig, KZ_NUM_DENORM_IN)) {
    // The smallest denormals of the type, scaled up to normal results; exact products.
    int low = t == Dtype::f16 ? -24 : t == Dtype::bf16 ? -133 : -149;
    Job in("denormal operands", Matrix(t, 6, 1), Matrix(t, 1, 6));
    in.exact = true;
    for (uint32_t i = 0; i < 6; ++i) {
      in.a.set(i, 0, (i % 2 ? -1 : 1) * (1 + i) * exp2i(low));
      in.b.set(0, i, exp2i(t == Dtype::f16 ? 10 : 60) * (i % 3 ? 1 : -1));
    }
    if (!rig.check(in)) return;
    if (!(rig.numeric(t) & KZ_NUM_DENORM_OUT)) continue;
    Job mixed("denormal operands in both", Matrix(t, 4, 2), Matrix(t, 2, 4));
    for (uint32_t i = 0; i < 4; ++i) {
      mixed.a.set(i, 0, 3 * exp2i(low)), mixed.a.set(i, 1, 1);
      mixed.b.set(0, i, exp2i(4)), mixed.b.set(1, i, (2 + i) * exp2i(low));
    }
    mixed.exact = true;
    if (!rig.check(mixed)) return;
  }
  for (Dtype t : declaring(rig, KZ_NUM_DENORM_OUT)) {
    if (t == Dtype::f16) continue;  // its products are never that small
    Job out("denormal results", Matrix(t, 5, 1), Matrix(t, 1, 5));
    out.exact = true;
    for (uint32_t i = 0; i < 5; ++i) {
      out.a.set(i, 0, (i % 2 ? -1.25 : 1.5) * exp2i(-70));
      out.b.set(0, i, exp2i(-58 - static_cast<int>(i) * 3));
    }
    if (!rig.check(out)) return;
  }
}

KZ_TEST(
    matmul, signed_zero,
    {.meaning = "a product of one term keeps the sign of zero", .level = 4, .needs = basics, .limit = 10s}) {
  Rig rig(device());
  for (Dtype t : declaring(rig, KZ_NUM_SIGNED_ZERO)) {
    Job job("signed zero", Matrix(t, 4, 1), Matrix(t, 1, 4));
    for (uint32_t i = 0; i < 4; ++i) {
      job.a.set(i, 0, i % 2 ? -0.0 : i == 0 ? 0.0 : -3);
      job.b.set(0, i, i == 0 ? 1 : i == 1 ? -1 : i == 2 ? 0.0 : -0.0);
    }
    if (!rig.check(job)) return;
  }
}

KZ_TEST(matmul, s8_overflow,
        {.meaning = "s32 sums beyond their range wrap or saturate as the device declares, in both directions",
         .level = 4,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_s8},
         .limit = 10s}) {
  Rig rig(device());
  for (int sign : {1, -1}) {
    Job job("accumulate over the edge", Matrix(Dtype::s8, 4, 3), Matrix(Dtype::s8, 3, 4));
    job.accumulate = true;
    job.a.fill([&](uint32_t i, uint32_t) { return sign * static_cast<double>(30 * i); });
    job.b.fill([](uint32_t, uint32_t j) { return 1.0 + 40 * j; });
    for (size_t i = 0; i < job.c.size(); ++i)
      job.c[i] = static_cast<uint32_t>(sign > 0 ? INT32_MAX - 1000 : INT32_MIN + 1000);
    if (!rig.check(job)) return;
  }
  // Without C: 2^17 and more terms of 2^14, where one matmul may have so many.
  uint32_t k = 133200;
  if (caps().limits.max_dim < k) return;
  Job wide("sum over the edge", Matrix(Dtype::s8, 1, k), Matrix(Dtype::s8, k, 2));
  wide.a.fill([](uint32_t, uint32_t) { return -128; });
  wide.b.fill([](uint32_t, uint32_t j) { return j == 0 ? -128 : 127; });
  rig.check(wide);
}

}  // namespace
}  // namespace kz::compute
