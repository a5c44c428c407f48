// SPDX-License-Identifier: GPL-2.0-or-later
// Every command completes once, in its own queue, by its own interrupt, with its own status.
#include <algorithm>
#include <thread>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

struct Lane {
  std::unique_ptr<QueueGuard> queue;
  HbmAddr data;
  uint32_t crc = 0;
  std::vector<std::byte> bytes = {};
};

// A checksum that is not that of the lane's data: another lane's result, wrong data in memory, or a wrong
// checksum.
void explain(Device& device, Lane& lane, uint64_t got, bool of_another) {
  if (of_another) {
    evidence(ev::status_wrong,
             {{"command", "CRC32C"}, {"expected", lane.crc}, {"got", got}, {"result_of", "another queue"}});
    ADD_FAILURE() << "queue " << lane.queue->id() << " got the result of another queue";
    return;
  }
  HostArea back(device, {.size = {lane.bytes.size()}});
  auto read = [&] { run_good(*lane.queue, {cmd::Copy{at(lane.data), back.place(), lane.bytes.size()}}); };
  read();
  const std::string bad = check_transfer({.path = "host>hbm>host",
                                          .want = lane.bytes,
                                          .got = back.bytes(),
                                          .reread = read,
                                          .queue = lane.queue.get(),
                                          .cells = lane.data,
                                          .cells_len = lane.bytes.size()});
  if (bad.empty())
    evidence(ev::compute_wrong, {{"op", "crc32c"},
                                 {"dtype", "u8"},
                                 {"shape", {1, lane.bytes.size(), 1}},
                                 {"wrong", 1},
                                 {"where", "all"},
                                 {"what", "bits"},
                                 {"rerun", "unknown"}});
  ADD_FAILURE() << "queue " << lane.queue->id() << ": the checksum is wrong; "
                << (bad.empty() ? "the data is right" : bad);
}

}  // namespace

KZ_TEST(queue, wrap,
        {.meaning = "small rings keep their order over hundreds of wraps, by interrupt and by polling",
         .level = 2,
         .needs = {Cap::queues, Cap::timestamp}}) {
  auto context = device().create_context();
  for (unsigned order : {1u, 2u, 4u}) {
    for (bool interrupts : {true, false}) {
      auto queue = open_queue(*context, {.order = order, .interrupts = interrupts});
      uint64_t last = 0;
      Ticket expected = 0;
      for (int round = 0; round < 150; ++round) {
        const uint32_t n = 1 + static_cast<uint32_t>(round) % queue->depth();
        for (uint32_t i = 0; i < n; ++i) queue->submit({.work = cmd::Timestamp{}, .fence = true}, i + 1 < n);
        queue->ring();
        const auto done = finish(*queue);
        ASSERT_EQ(done.size(), n);
        for (const auto& c : done) {
          if (c.status != Status::ok) ADD_FAILURE() << report_status("TIMESTAMP", Status::ok, c.status);
          EXPECT_EQ(c.ticket, ++expected) << "fenced commands completed out of order";
          if (c.status == Status::ok && c.result < last) {
            evidence(ev::telemetry,
                     {{"what", "clock_backwards"}, {"field", "TIMESTAMP"}, {"by_ns", last - c.result}});
            ADD_FAILURE() << "the device clock went back by " << last - c.result << " ns";
          }
          last = c.result;
        }
      }
    }
  }
}

KZ_TEST(queue, interrupts,
        {.meaning = "each completion raises its queue's vector once, and nothing else raises one",
         .level = 2,
         .needs = {Cap::interrupts, Cap::queues}}) {
  constexpr int kRuns = 80;
  auto context = device().create_context();
  std::vector<std::unique_ptr<QueueGuard>> queues;
  for (int i = 0; i < 3; ++i) queues.push_back(open_queue(*context));
  const size_t vectors = device().interrupt_counts().size();
  for (auto& queue : queues) {
    if (vectors < 2) skip("the device has one vector: it says nothing about which");
    const size_t own = queue->id() % vectors;
    const auto before = device().interrupt_counts();
    for (int i = 0; i < kRuns; ++i) run_good(*queue, {cmd::Nop{}});
    std::vector<uint64_t> after = device().interrupt_counts();
    for (Deadline watch(20ms); !watch.passed(); std::this_thread::yield())
      after = device().interrupt_counts();
    const uint64_t mine = after[own] - before[own];
    for (size_t v = 0; v < vectors; ++v) {
      const uint64_t n = after[v] - before[v];
      if (v == own || n == 0) continue;
      evidence(ev::wrong_vector, {{"expected", own}, {"seen", v}, {"count", n}});
      ADD_FAILURE() << n << " interrupts on vector " << v << " while only queue " << queue->id()
                    << " with vector " << own << " ran";
    }
    // One at a time: none can be merged with another.
    if (mine != kRuns) {
      const uint64_t off = mine > kRuns ? mine - kRuns : kRuns - mine;
      evidence(ev::audit,
               {{"field", mine > kRuns ? "interrupt_without_completion" : "completion_without_interrupt"},
                {"count", off},
                {"queue", queue->id()}});
      ADD_FAILURE() << mine << " interrupts for " << kRuns << " completions of queue " << queue->id();
    }
  }
}

KZ_TEST(queue, vector_choice,
        {.meaning = "a queue that was given another vector raises that one, a quiet command raises none",
         .level = 2,
         .needs = {Cap::interrupts, Cap::queues}}) {
  auto context = device().create_context();
  const auto vectors = static_cast<uint16_t>(device().interrupt_counts().size());
  if (vectors < 4) skip("the device has fewer than four vectors");
  const uint16_t chosen = vectors - 1;
  auto queue = open_queue(*context, {.vector = chosen});
  if (queue->id() == chosen) skip("the queue's own number is the last vector");
  const auto before = device().interrupt_counts();
  for (int i = 0; i < 20; ++i) run_good(*queue, {cmd::Nop{}});
  auto after = device().interrupt_counts();
  EXPECT_EQ(after[chosen] - before[chosen], 20u);
  if (after[queue->id()] != before[queue->id()]) {
    evidence(ev::wrong_vector, {{"expected", chosen}, {"seen", queue->id()}});
    ADD_FAILURE() << "the queue raised the vector of its number";
  }
  // Two quiet commands and a loud one behind them: one interrupt.
  const uint64_t base = device().interrupt_counts()[chosen];
  queue->submit({.work = cmd::Nop{}, .quiet = true}, true);
  queue->submit({.work = cmd::Nop{}, .quiet = true}, true);
  queue->submit({.work = cmd::Nop{}, .fence = true});
  finish(*queue);
  EXPECT_EQ(device().interrupt_counts()[chosen] - base, 1u)
      << "quiet commands raised interrupts, or the loud one did not";
}

KZ_TEST(queue, own_completions,
        {.meaning = "queues that run at once get the completions and results of their own commands only",
         .level = 2,
         .needs = {Cap::queues, Cap::hbm_alloc, Cap::crc32c, Cap::dma}}) {
  constexpr uint64_t kLen = 4096;
  constexpr int kLanes = 5;
  auto context = device().create_context();
  auto hbm = context->alloc({kLanes * kLen});
  HostArea host(device(), {.size = {kLanes * kLen}});
  fill_payload(host.bytes(), {rng()()});
  std::vector<Lane> lanes(kLanes);
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] = {open_queue(*context),
                hbm->addr() + i * kLen,
                crc32c(host.bytes(i * kLen, kLen)),
                {host.bytes(i * kLen, kLen).begin(), host.bytes(i * kLen, kLen).end()}};
    run_good(*lanes[i].queue, {cmd::Copy{host.place(i * kLen), at(lanes[i].data), kLen}});
  }
  for (int round = 0; round < 60; ++round) {
    for (auto& lane : lanes)
      for (int i = 0; i < 4; ++i) lane.queue->submit({cmd::Crc32c{at(lane.data), kLen}});
    for (auto& lane : lanes) {
      for (const auto& c : finish(*lane.queue, 2s)) {
        if (c.status != Status::ok)
          ADD_FAILURE() << report_status("CRC32C", Status::ok, c.status);
        else if (c.result != lane.crc)
          explain(device(), lane, c.result,
                  std::ranges::any_of(lanes, [&](const Lane& other) { return other.crc == c.result; }));
        if (HasFailure()) return;
      }
    }
  }
}

KZ_TEST(
    queue, doorbells,
    {.meaning = "no doorbell is missed, several submissions may share one, and one without work does nothing",
     .level = 2,
     .needs = {Cap::queues}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 4});
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + static_cast<int>(rng()() % 6);
    for (int i = 0; i < n; ++i) queue->submit({cmd::Nop{}}, rng()() % 2 == 0);
    queue->ring();
    if (round % 5 == 0) queue->ring();
    const auto done = finish(*queue, 2s);
    ASSERT_EQ(done.size(), static_cast<size_t>(n));
  }
  const uint64_t before = queue->audit().completed;
  for (int i = 0; i < 20; ++i) queue->ring();
  EXPECT_TRUE(queue->wait(Deadline(20ms)).empty()) << "a doorbell without work brought a completion";
  EXPECT_EQ(queue->audit().completed, before);
}

KZ_TEST(
    queue, statuses,
    {.meaning =
         "good commands end with ok, and refused ones with the status that the ABI names, mixed in one queue",
     .level = 2,
     .needs = {Cap::queues, Cap::hbm_alloc, Cap::dma, Cap::timestamp}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  auto hbm = context->alloc({65536});
  HostArea host(device(), {.size = {4096}});
  const HbmAddr beyond{hbm->addr().value + (uint64_t{1} << 50)};
  for (int round = 0; round < 12; ++round) {
    expect_status(*queue, {cmd::Nop{}}, Status::ok, "a NOP");
    expect_status(*queue, {cmd::Fill{at(hbm->addr()), 4096, 7}}, Status::ok, "a fill");
    expect_status(*queue, {cmd::Copy{at(hbm->addr()), host.place(), 4096}}, Status::ok, "a copy");
    expect_status(*queue, {cmd::Timestamp{}}, Status::ok, "a timestamp");
    expect_status(*queue, {cmd::Fence{}}, Status::ok, "a fence");
    expect_status(*queue, {cmd::Fill{at(beyond), 64, 1}}, Status::hbm_fault,
                  "a fill outside the context's memory");
    expect_status(*queue, {cmd::EccInject{HbmAddr{0}}}, Status::denied,
                  "a privileged command without the right");
  }
}

}  // namespace kz::test
