// SPDX-License-Identifier: GPL-2.0-or-later
// Matmuls of every type against the golden: shapes, strides, accumulation, operand patterns.
#include <fmt/format.h>

#include "tests/compute/operands.h"
#include "tests/compute/rig.h"
#include "tests/harness/test.h"

namespace kz::compute {
namespace {

using namespace test;

void shapes(Rig& rig, Dtype t, std::mt19937_64& rng) {
  for (const Dims& d : awkward_shapes()) {
    if (!rig.check(
            {"shape", make(t, d.m, d.k, Pattern::random, rng), make(t, d.k, d.n, Pattern::random, rng)}))
      return;
    if (!rig.check(exact_job("exact integers", t, d, rng))) return;
  }
  // Rows wider than the matrix, in all three places; the gaps hold NaN and must not be read or written.
  for (const Dims& d : {Dims{5, 7, 19}, {32, 48, 33}}) {
    Job job("strides", make(t, d.m, d.k, Pattern::random, rng, d.k + 5),
            make(t, d.k, d.n, Pattern::random, rng, d.n + 3), 9);
    if (!rig.check(job)) return;
    job.name = "accumulate";
    job.accumulate = true;
    for (uint32_t i = 0; i < d.m; ++i)
      for (uint32_t j = 0; j < d.n; ++j) {
        float f = static_cast<float>(static_cast<int>(rng() % 2001)) - 1000;
        job.c[size_t{i} * job.ldc + j] =
            t == Dtype::s8 ? static_cast<uint32_t>(static_cast<int32_t>(f)) : std::bit_cast<uint32_t>(f);
      }
    if (!rig.check(job)) return;
  }
}

void patterns(Rig& rig, Dtype t, std::mt19937_64& rng) {
  for (Pattern a : all_patterns())
    for (Pattern b : all_patterns())
      if (!rig.check({fmt::format("{} x {}", to_string(a), to_string(b)), make(t, 33, 34, a, rng),
                      make(t, 34, 35, b, rng)}))
        return;
}

KZ_TEST(matmul, s8,
        {.meaning = "s8 x s8 -> s32 is exact for odd shapes, strides, accumulation and operand patterns",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_s8},
         .limit = 20s}) {
  Rig rig(device());
  shapes(rig, Dtype::s8, rng());
  patterns(rig, Dtype::s8, rng());
}

KZ_TEST(matmul, bf16,
        {.meaning = "bf16 x bf16 -> f32 stays within its bound for odd shapes, strides, accumulation and "
                    "operand patterns",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_bf16},
         .limit = 20s}) {
  Rig rig(device());
  shapes(rig, Dtype::bf16, rng());
  patterns(rig, Dtype::bf16, rng());
}

KZ_TEST(
    matmul, f16,
    {.meaning =
         "f16 x f16 -> f32 stays within its bound for odd shapes, strides, accumulation and operand patterns",
     .level = 2,
     .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_f16},
     .limit = 20s}) {
  Rig rig(device());
  shapes(rig, Dtype::f16, rng());
  patterns(rig, Dtype::f16, rng());
}

KZ_TEST(
    matmul, f32,
    {.meaning =
         "f32 x f32 -> f32 stays within its bound for odd shapes, strides, accumulation and operand patterns",
     .level = 2,
     .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_f32},
     .limit = 20s}) {
  Rig rig(device());
  shapes(rig, Dtype::f32, rng());
  patterns(rig, Dtype::f32, rng());
}

KZ_TEST(matmul, k_tails,
        {.meaning = "every K from 1 to 80 is summed to its last term, with exact operands",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc},
         .limit = 20s}) {
  Rig rig(device());
  if (rig.types().empty()) skip("the device has no matmul");
  for (Dtype t : rig.types())
    for (uint32_t k = 1; k <= 80; ++k)
      if (!rig.check(exact_job(fmt::format("K = {}", k), t, {9, 17, k}, rng()))) return;
}

KZ_TEST(matmul, repeatable,
        {.meaning = "the same operands give the same bits again and again, where the device promises that",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc},
         .limit = 20s}) {
  Rig rig(device());
  if (rig.types().empty()) skip("the device has no matmul");
  for (Dtype t : rig.types())
    for (const Dims& d : {Dims{48, 48, 331}, {3, 200, 64}}) {
      Job job("repeat", make(t, d.m, d.k, Pattern::random, rng()), make(t, d.k, d.n, Pattern::random, rng()));
      if (!rig.check_repeatable(job, static_cast<unsigned>(8 * scale()))) return;
    }
}

}  // namespace
}  // namespace kz::compute
