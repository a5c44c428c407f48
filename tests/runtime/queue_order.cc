// SPDX-License-Identifier: GPL-2.0-or-later
// Order and service: fences hold, queues share, an abort takes its command only.
#include <algorithm>
#include <numeric>

#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kBig = uint64_t{4} << 20;

uint64_t word_at(std::span<const std::byte> bytes, uint64_t offset) {
  uint64_t word;
  std::memcpy(&word, &bytes[offset], 8);
  return word;
}

}  // namespace

KZ_TEST(queue, fence,
        {.meaning = "nothing behind a fence starts before everything in front of it is done",
         .level = 2,
         .needs = {Cap::fence, Cap::hbm_alloc, Cap::dma, Cap::timestamp}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 3});
  auto hbm = context->alloc({kBig});
  HostArea host(device(), {.size = {4096}});
  for (uint64_t round = 1; round <= 40; ++round) {
    const uint64_t pattern = round * 0x0101010101010101;
    std::ranges::fill(host.bytes(), kNotRead);
    // A long fill, and a copy of its last bytes that must wait for it: by flag, or by a fence command
    // between.
    const bool by_flag = round % 2;
    const Ticket first = queue->submit({cmd::Fill{at(hbm->addr()), kBig, pattern}}, true);
    Ticket fence = 0;
    if (!by_flag) fence = queue->submit({cmd::Fence{}}, true);
    const Ticket copy = queue->submit(
        {.work = cmd::Copy{at(hbm->addr() + (kBig - 4096)), host.place(), 4096}, .fence = by_flag}, true);
    queue->ring();
    std::map<Ticket, size_t> place;
    for (const auto& c : finish(*queue)) {
      place.emplace(c.ticket, place.size());
      if (c.status != Status::ok)
        ADD_FAILURE() << report_status("a command at a fence", Status::ok, c.status);
    }
    const char* second = by_flag ? "fenced COPY" : "FENCE";
    const Ticket behind = by_flag ? copy : fence;
    // What an earlier round filled says that the copy came too early; anything else is the copy's own
    // trouble.
    const bool stale = by_flag && word_at(host.bytes(), 4088) == (round - 1) * 0x0101010101010101;
    if (place[behind] < place[first] || stale) {
      evidence(ev::fence_passed, {{"first", "FILL"}, {"second", second}, {"stale_data", stale}});
      FAIL() << second << " overtook the FILL in front of it (round " << round << ")";
    }
    if (!by_flag) continue;  // behind a FENCE command, but not itself bound to wait for it
    const std::vector<std::byte> want(4096, static_cast<std::byte>(round));
    ASSERT_EQ(check_transfer({.path = "hbm>host", .want = want, .got = host.bytes()}), "")
        << "round " << round;
  }
}

KZ_TEST(queue, fairness,
        {.meaning = "queues with equal work get about equal service",
         .level = 2,
         .needs = {Cap::queues, Cap::hbm_alloc},
         .limit = 20s}) {
  constexpr int kQueues = 4;
  constexpr uint64_t kLen = 64 * 1024;
  auto context = device().create_context();
  auto hbm = context->alloc({kQueues * kLen});
  std::vector<std::unique_ptr<QueueGuard>> queues;
  for (int i = 0; i < kQueues; ++i) queues.push_back(open_queue(*context, {.order = 4, .interrupts = false}));
  std::vector<uint64_t> worst_windows(kQueues);
  std::vector<double> shares(kQueues);
  constexpr int kWindows = 3;
  for (int window = 0; window < kWindows; ++window) {
    std::vector<uint64_t> done(kQueues);
    for (Deadline watch(250ms); !watch.passed();)
      for (int i = 0; i < kQueues; ++i) {
        while (queues[i]->outstanding() < 8)
          queues[i]->submit({cmd::Fill{at(hbm->addr() + i * kLen), kLen, 1}});
        done[i] += queues[i]->poll().size();
      }
    const auto total = static_cast<double>(std::accumulate(done.begin(), done.end(), uint64_t{0}));
    for (int i = 0; i < kQueues; ++i) {
      shares[i] = static_cast<double>(done[i]) / std::max(total, 1.0);
      worst_windows[i] += shares[i] < 0.25 / kQueues;
    }
  }
  for (auto& queue : queues) finish(*queue);
  for (int i = 0; i < kQueues; ++i) {
    metric("queue.share." + std::to_string(i), shares[i], "ratio");
    if (worst_windows[i] < kWindows) continue;
    evidence(ev::starved, {{"shares", shares}, {"queue", queues[i]->id()}});
    ADD_FAILURE() << "queue " << queues[i]->id() << " got " << shares[i] << " of the service in each of "
                  << kWindows << " windows";
  }
}

KZ_TEST(queue, abort,
        {.meaning = "an abort ends its command or comes too late, and touches no other",
         .level = 2,
         .needs = {Cap::abort, Cap::hbm_alloc},
         .limit = 20s}) {
  constexpr int kCommands = 12;
  auto context = device().create_context();
  auto worker = open_queue(*context, {.order = 4});
  auto other = open_queue(*context);
  auto hbm = context->alloc({kBig});
  int aborted = 0;
  for (int round = 0; round < 12 && aborted < 6; ++round) {
    std::vector<Ticket> tickets;
    for (int i = 0; i < kCommands; ++i)
      tickets.push_back(worker->submit({cmd::Fill{at(hbm->addr()), kBig, 1}}, true));
    const int target = 3 + static_cast<int>(rng()() % (kCommands - 5));
    const uint16_t cid = worker->cid(tickets[target]);
    worker->ring();
    const Completion answer = run_one(*other, {cmd::Abort{worker->id(), cid}});
    if (answer.status != Status::ok) ADD_FAILURE() << report_status("ABORT", Status::ok, answer.status);
    aborted += answer.result == 1;
    for (const auto& c : finish(*worker)) {
      const auto index = std::find(tickets.begin(), tickets.end(), c.ticket) - tickets.begin();
      const Status want = index == target && answer.result == 1 ? Status::aborted : Status::ok;
      if (c.status == want) continue;
      if (c.status == Status::aborted) {
        evidence(ev::abort_spread, {{"target", target}, {"also", index}});
        ADD_FAILURE() << "the abort of command " << target << " ended command " << index << " too";
      } else {
        ADD_FAILURE() << report_status(index == target ? "an aborted FILL" : "FILL", want, c.status);
      }
    }
  }
  metric("queue.aborted", aborted, "commands");
  // Of a command that is long done there is nothing to abort.
  EXPECT_EQ(run_one(*other, {cmd::Abort{worker->id(), 0xfff0}}).result, 0u);
  EXPECT_GT(aborted, 0) << "no abort of twelve took effect, though commands were waiting in the ring";
}

}  // namespace kz::test
