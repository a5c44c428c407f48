// SPDX-License-Identifier: GPL-2.0-or-later
// How long a command takes there and back.
#include "tests/harness/diagnose.h"
#include "tests/harness/stats.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

double microseconds(const Completion& done) {
  return std::chrono::duration<double, std::micro>(done.seen - done.submitted).count();
}

}  // namespace

KZ_TEST(queue, latency,
        {.meaning = "1000 single commands: every one completes, and their times are recorded",
         .level = 2,
         .needs = {Cap::queues}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  std::vector<double> times;
  for (int i = 0; i < 1000; ++i) times.push_back(microseconds(run_good(*queue, {cmd::Nop{}})));
  const Summary s = summarize(times);
  report_summary("queue.latency", s, "us");
  // A NOP that takes a second is broken whatever the link.
  if (s.p50 > 1e6)
    evidence(ev::slow, {{"what", "latency"}, {"value", s.p50}, {"reference", 1e6}, {"ratio", s.p50 / 1e6}});
  EXPECT_LT(s.p50, 1e6);
}

KZ_TEST(queue, batches,
        {.meaning = "full rings of commands complete, each once, with one doorbell a ring",
         .level = 2,
         .needs = {Cap::queues}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 5});
  const auto start = Clock::now();
  constexpr int kRounds = 60;
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < queue->depth(); ++i) queue->submit({cmd::Nop{}}, true);
    queue->ring();
    const auto done = finish(*queue);
    ASSERT_EQ(done.size(), queue->depth());
    for (const auto& c : done)
      if (c.status != Status::ok) ADD_FAILURE() << report_status("NOP", Status::ok, c.status);
  }
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  metric("queue.batched_nop", us / (kRounds * queue->depth()), "us");
}

}  // namespace kz::test
