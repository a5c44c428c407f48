// SPDX-License-Identifier: GPL-2.0-or-later
// Faults that show seldom, only for some operands, or only when hot.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "memcheck/heat.h"
#include "tests/compute/operands.h"
#include "tests/compute/rig.h"
#include "tests/harness/test.h"

namespace kz::compute {
namespace {

using namespace test;

// Many small matmuls with the same operands and a place of its own for each result. All results are compared
// in full, with the exact answer: a fault that strikes one matmul in a thousand and one bit of it is seen.
class Swarm {
 public:
  Swarm(Rig& rig, const Job& job) : rig_(rig), job_(job), size_(align_up(job.c.size() * 4, 64)) {
    queue_ = open_queue(rig.device(), rig.context(), {.order = 8});
    b_ = rig.base() + align_up(job.a.bytes().size(), 64);
    c_ = b_ + align_up(job.b.bytes().size(), 64);
    places_ = static_cast<uint32_t>(std::min<uint64_t>(1024, (uint64_t{1} << 20) / size_));
  }

  // False: one was wrong and is reported.
  bool run(uint64_t count) {
    Golden golden(job_, rig_.numeric(job_.a.dtype()));
    auto first = rig_.run(job_);
    if (auto wrong = golden.judge(first)) return rig_.check(job_);
    std::vector<uint32_t> all(places_ * size_ / 4);
    for (uint64_t done = 0; done < count; done += places_) {
      batch();
      rig_.download(c_, std::as_writable_bytes(std::span(all)));
      for (uint32_t p = 0; p < places_; ++p) {
        auto one = std::span(all).subspan(p * size_ / 4, job_.c.size());
        if (std::ranges::equal(one, std::span(first).first(job_.c.size()))) continue;
        report(golden, one, done + p);
        return false;
      }
    }
    return true;
  }

 private:
  void batch() {
    cmd::Matmul work{
        .a = rig_.base(), .b = b_, .m = job_.m(), .n = job_.n(), .k = job_.k(), .dtype = job_.a.dtype()};
    for (uint32_t p = 0; p < places_;) {
      for (; p < places_ && queue_->outstanding() + 1 < queue_->depth(); ++p) {
        work.c = c_ + p * size_;
        queue_->submit({work, false, p % 64 != 63},
                       true);  // an interrupt for every 64th, and for the last below
      }
      queue_->submit({cmd::Fence{}}, true);
      queue_->ring();
      for (const Completion& c : finish(*queue_)) EXPECT_EQ(c.status, Status::ok);
    }
  }

  void report(const Golden& golden, std::span<const uint32_t> got, uint64_t index) {
    auto wrong = golden.judge(got).value_or(Wrong{.count = 1, .what = What::bits});
    auto again = rig_.run(job_);
    evidence(ev::compute_wrong, {{"op", "matmul"},
                                 {"dtype", to_string(job_.a.dtype())},
                                 {"shape", {job_.m(), job_.n(), job_.k()}},
                                 {"wrong", wrong.count},
                                 {"where", to_string(wrong.where)},
                                 {"what", to_string(wrong.what)},
                                 {"rerun", golden.judge(again) ? "differs" : "good"},
                                 {"max_err", wrong.max_err},
                                 {"bound", wrong.bound},
                                 {"after_matmuls", index},
                                 {"celsius", rig_.device().telemetry().core_celsius.value_or(0)}});
    ADD_FAILURE() << fmt::format("{}: matmul {} of equal ones: {}", job_.name, index + 1, wrong.text());
  }

  Rig& rig_;
  const Job& job_;
  uint64_t size_;
  std::unique_ptr<QueueGuard> queue_;
  HbmAddr b_, c_;
  uint32_t places_ = 0;
};

KZ_TEST(
    matmul, thousands,
    {.meaning =
         "thousands of small matmuls, every word of every result compared: faults of one in a thousand show",
     .level = 3,
     .needs = basics,
     .limit = 60s}) {
  Rig rig(device());
  auto types = rig.types();
  if (types.empty()) skip("the device has no matmul");
  auto count = static_cast<uint64_t>(16384 * scale()) / types.size();
  for (Dtype t : types) {
    Job job = exact_job("many", t, {16, 16, 16}, rng());
    if (!Swarm(rig, job).run(count)) return;
  }
  metric("small_matmuls", static_cast<double>(count * types.size()), "commands");
}

// Every value of one operand against many of the other, one product each: nothing can hide in a sum.
bool value_pairs(Rig& rig, Dtype t, uint32_t low, std::span<const uint32_t> others) {
  constexpr uint32_t rows = 4096;
  auto columns = static_cast<uint32_t>(others.size());
  for (bool swapped : {false, true}) {
    Job job(fmt::format("values from {:#06x}", low), Matrix(t, swapped ? columns : rows, 1),
            Matrix(t, 1, swapped ? rows : columns));
    for (uint32_t i = 0; i < rows; ++i)
      swapped ? job.b.set_bits(0, i, low + i) : job.a.set_bits(i, 0, low + i);
    for (uint32_t i = 0; i < columns; ++i)
      swapped ? job.a.set_bits(i, 0, others[i]) : job.b.set_bits(0, i, others[i]);
    if (!rig.check(job)) return false;
  }
  return true;
}

KZ_TEST(matmul, all_s8_pairs,
        {.meaning = "all 65536 products of two s8 values are right, alone and in every lane of a sum",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::matmul_s8},
         .limit = 20s}) {
  Rig rig(device());
  Job pairs("all pairs", Matrix(Dtype::s8, 256, 1), Matrix(Dtype::s8, 1, 256));
  pairs.a.fill([](uint32_t i, uint32_t) { return static_cast<int8_t>(i); });
  pairs.b.fill([](uint32_t, uint32_t j) { return static_cast<int8_t>(j); });
  if (!rig.check(pairs)) return;
  // In lane x of K, row i holds value i + x: every pair meets in every lane.
  Job lanes("all pairs in 32 lanes", Matrix(Dtype::s8, 256, 32), Matrix(Dtype::s8, 32, 256));
  lanes.a.fill([](uint32_t i, uint32_t x) { return static_cast<int8_t>(i + 37 * x); });
  lanes.b.fill([](uint32_t x, uint32_t j) { return static_cast<int8_t>(j + 101 * x); });
  rig.check(lanes);
}

KZ_TEST(matmul, all_values_16bit,
        {.meaning = "every 16-bit value of each 16-bit type, in both operands, against a sample of the other",
         .level = 3,
         .needs = basics,
         .limit = 60s}) {
  Rig rig(device());
  auto types = rig.types();
  std::erase_if(types, [](Dtype t) { return element_size(t) != 2; });
  if (types.empty()) skip("the device has no 16-bit matmul");
  for (Dtype t : types) {
    // 1, -1.5 and random numbers near one: products of all others show their own bits.
    std::vector<uint32_t> others;
    Matrix one(t, 1, 1);
    for (uint32_t n = 0; n < static_cast<uint32_t>(8 * std::min(scale(), 16.0)); ++n) {
      one.set(0, 0, n == 0 ? 1 : n == 1 ? -1.5 : 1 + static_cast<double>(rng()() % 128) / 128);
      others.push_back(one.bits(0, 0));
    }
    for (uint32_t low = 0; low < 65536; low += 4096)
      if (!value_pairs(rig, t, low, others)) return;
  }
}

KZ_TEST(matmul, hot,
        {.meaning = "matmuls stay right at working temperature",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::telemetry},
         .limit = 60s}) {
  Rig rig(device());
  auto types = rig.types();
  if (types.empty()) skip("the device has no matmul");
  memcheck::Heater heater(device(), rig.context());
  auto heat = heater.until_plateau(std::chrono::duration<double>(3 * scale()));
  metric("hot_matmul_celsius", heat.end_celsius, "C");
  for (int round = 0; round < 3; ++round)
    for (Dtype t : types) {
      heater.step();
      if (!rig.check(exact_job("hot", t, {64, 64, 64}, rng()))) return;
      if (!rig.check(
              {"hot", make(t, 50, 70, Pattern::random, rng()), make(t, 70, 60, Pattern::random, rng())}))
        return;
    }
}

}  // namespace
}  // namespace kz::compute
