// SPDX-License-Identifier: GPL-2.0-or-later
// Aborts, watchdog, fixed service time, and the faults that the front of the software TPU can plant.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <thread>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;

// ---- a device whose every command takes 200 ms, so that there is time to act on one ----

struct SlowRig : QueueRig {
  SlowRig() : QueueRig(200ms) {}
};

TEST_F(SlowRig, AbortsWaitingAndRunningCommands) {
  HostQueue queue(client, 1, 4);
  HostQueue other(client, 2, 4, 0x8000000);
  queue.enable();
  other.enable();
  uint16_t first = queue.submit(KZ_OP_NOP, false), second = queue.submit(KZ_OP_NOP, false);
  queue.submit(KZ_OP_NOP, false);
  queue.submit(abort_of(1, second));
  ASSERT_TRUE(Client::eventually([&] { return q(1, KZ_Q_SQ_HEAD) == 4; }));
  other.submit(abort_of(1, first));
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_ABORTED);  // running
  kz_cqe waiting = queue.wait();
  EXPECT_EQ(waiting.cid, second);
  EXPECT_EQ(KZ_CQE_CODE(waiting.status), KZ_ST_ABORTED);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_OK);  // its neighbour is untouched
  EXPECT_EQ(queue.wait().result, 1u);
  EXPECT_EQ(other.wait().result, 1u);
}

TEST_F(SlowRig, AbortBehindARunningCommandOfTheSameQueue) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  uint16_t victim = queue.submit(KZ_OP_NOP);
  ASSERT_TRUE(Client::eventually([&] { return q(1, KZ_Q_SQ_HEAD) == 1; }));
  queue.submit(abort_of(1, victim));
  auto start = Clock::now();
  std::optional<kz_cqe> cqe;
  ASSERT_TRUE(Client::eventually([&] {
    client.device.tick();
    return (cqe = queue.poll()).has_value();
  }));
  queue.consume();
  EXPECT_EQ(KZ_CQE_CODE(cqe->status), KZ_ST_ABORTED);
  EXPECT_LT(Clock::now() - start, 190ms);
}

TEST_F(SlowRig, AbortSpreadsWithTheFault) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("Q17");
  queue.submit(KZ_OP_NOP, false);
  uint16_t target = queue.submit(KZ_OP_NOP, false);
  queue.submit(KZ_OP_NOP, false);
  queue.submit(abort_of(1, target));
  std::multiset<uint16_t> codes;
  for (int i = 0; i < 4; ++i) codes.insert(KZ_CQE_CODE(queue.wait().status));
  EXPECT_GE(codes.count(KZ_ST_ABORTED), 2u);
}

TEST_F(SlowRig, WatchdogEndsALongCommand) {
  HostQueue queue(client, 1, 4);
  client.reg(KZ_REG_WATCHDOG_MS, 20);
  queue.enable();
  queue.submit(KZ_OP_NOP);
  std::optional<kz_cqe> cqe;
  ASSERT_TRUE(Client::eventually([&] {
    client.device.tick();
    return (cqe = queue.poll()).has_value();
  }));
  EXPECT_EQ(KZ_CQE_CODE(cqe->status), KZ_ST_TIMEOUT);
}

std::set<pid_t> own_threads() {
  std::set<pid_t> found;
  for (auto& e : std::filesystem::directory_iterator("/proc/self/task"))
    found.insert(std::stoi(e.path().filename()));
  return found;
}

// A busy thread that wins one processor from the threads put beside it.
class Neighbour {
 public:
  explicit Neighbour(const std::set<pid_t>& victims) {
    CPU_ZERO(&one_);
    CPU_SET(::sched_getcpu(), &one_);
    for (pid_t v : victims) {
      ::sched_setaffinity(v, sizeof one_, &one_);
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(v), 19);
    }
    thread_ = std::thread([this] {
      ::sched_setaffinity(0, sizeof one_, &one_);
      while (!stop_) {
      }
    });
  }
  ~Neighbour() {
    stop_ = true;
    thread_.join();
  }

 private:
  cpu_set_t one_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A command is not ended for time in which its thread could have run and got no processor.
TEST_F(QueueRig, WatchdogForgivesAHostThatIsBusy) {
  client.faults.inject(
      {{"row", "M21"}, {"trigger", {{"kind", "now"}}}},
      false);  // memory of which each word is looked at on its own: a march takes long enough
  HostQueue queue(client, 1, 4);
  const auto before = own_threads();
  queue.enable();
  std::set<pid_t> worker;
  std::ranges::set_difference(own_threads(), before, std::inserter(worker, worker.end()));
  ASSERT_FALSE(worker.empty());
  kz_cmd march{};
  march.opcode = KZ_OP_MARCH;
  march.u.march.len = client.reg(KZ_REG_HBM_SIZE_LO);
  march.u.march.nops = KZ_MARCH_OPS;
  std::fill_n(march.u.march.ops, KZ_MARCH_OPS, KZ_MARCH_W0);
  const auto alone = [&] {
    const auto start = Clock::now();
    queue.submit(march);
    EXPECT_EQ(KZ_CQE_CODE(queue.wait(60s).status), KZ_ST_OK);
    return Clock::now() - start;
  };
  alone();  // its pages are there
  const auto watchdog = std::chrono::duration_cast<std::chrono::milliseconds>(3 * alone()) + 500ms;
  client.reg(KZ_REG_WATCHDOG_MS, static_cast<uint32_t>(watchdog.count()));
  std::optional<kz_cqe> cqe;
  const auto start = Clock::now();
  auto neighbour = std::make_unique<Neighbour>(worker);
  queue.submit(march);
  while (!(cqe = queue.poll()) && Clock::now() - start < 60s) {
    client.device.tick();
    if (Clock::now() - start > 3 * watchdog) neighbour.reset();
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_TRUE(cqe);
  EXPECT_GT(Clock::now() - start, watchdog) << "the neighbour took no processor: this shows nothing";
  EXPECT_EQ(KZ_CQE_CODE(cqe->status), KZ_ST_OK);
}

TEST_F(SlowRig, ResetDoesNotWaitForCommands) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  for (int i = 0; i < 10; ++i) queue.submit(KZ_OP_NOP);
  auto start = Clock::now();
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
  EXPECT_LT(Clock::now() - start, 150ms);
  EXPECT_FALSE(queue.poll().has_value());
}

struct FixedRig : QueueRig {
  FixedRig() : QueueRig(2ms) {}
};

TEST_F(FixedRig, BackToBackCommandsTakeExactlyTheServiceTime) {
  EXPECT_TRUE(client.reg(KZ_REG_FEAT) & KZ_FEAT_FIXED_TIME);
  HostQueue queue(client, 1, 6);
  queue.enable();
  // Never sooner. Lateness of single sleeps must not add up, but a busy host may make a round late.
  Clock::duration best = Clock::duration::max();
  for (int round = 0; round < 20 && best >= 130ms; ++round) {
    auto start = Clock::now();
    for (int i = 0; i < 50; ++i) queue.submit(KZ_OP_NOP, false);
    queue.ring();
    for (int i = 0; i < 50; ++i) queue.wait();
    best = std::min(best, Clock::now() - start);
    ASSERT_GE(best, 100ms);
  }
  EXPECT_LT(best, 130ms);
}

// ---- faults of the front ----

TEST_F(QueueRig, LostInterrupt) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("Q01", {{"kind", "once"}, {"n", 0u}}, {{"every", 1}});
  queue.submit(KZ_OP_NOP);
  queue.wait();
  EXPECT_FALSE(queue.interrupted(50ms));
  queue.submit(KZ_OP_NOP);
  queue.wait();
  EXPECT_TRUE(queue.interrupted(10s));
}

TEST_F(QueueRig, InterruptWithoutCompletion) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("Q02", {{"kind", "now"}}, {{"every", 1}});
  queue.submit(KZ_OP_NOP);
  queue.wait();
  uint64_t seen = 0;
  EXPECT_TRUE(Client::eventually([&] { return (seen += queue.interrupts()) == 2; }));
}

TEST_F(QueueRig, WrongVector) {
  HostQueue queue(client, 1, 4), other(client, 2, 4, 0x8000000);
  queue.enable();
  inject("Q03", {{"kind", "now"}}, {{"vector_offset", 1}});
  queue.submit(KZ_OP_NOP);
  queue.wait();
  EXPECT_TRUE(other.interrupted(10s));
  EXPECT_EQ(queue.interrupts(), 0u);
}

TEST_F(QueueRig, CompletionTwiceAndNever) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("Q04", {{"kind", "once"}, {"n", 0u}}, {{"every", 1}});
  uint16_t cid = queue.submit(KZ_OP_NOP);
  EXPECT_EQ(queue.wait().cid, cid);
  EXPECT_EQ(queue.wait().cid, cid);
  client.faults.clear(0);
  inject("Q05", {{"kind", "once"}, {"n", 0u}}, {{"every", 4}});
  int completions = 0;
  for (int i = 0; i < 4; ++i) queue.submit(KZ_OP_NOP);
  EXPECT_FALSE(Client::eventually([&] { return (completions += queue.poll().has_value()) == 4; }, 100ms));
  EXPECT_EQ(completions, 3);
}

TEST_F(QueueRig, FenceOvertaken) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("Q06", {{"kind", "now"}}, {{"delay_us", 200}});
  uint16_t first = queue.submit(KZ_OP_NOP, false), fence = queue.submit(KZ_OP_FENCE, false);
  queue.ring();
  EXPECT_EQ(queue.wait().cid, fence);
  EXPECT_EQ(queue.wait().cid, first);
}

TEST_F(QueueRig, WrongStatusAndWrongPhase) {
  HostQueue queue(client, 1, 1);
  queue.enable();
  inject("Q08", {{"kind", "now"}}, {{"status", 5}, {"every", 1}});
  queue.submit(KZ_OP_NOP);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), 5u);
  client.faults.clear(0);
  queue.submit(KZ_OP_NOP);
  queue.wait();
  inject("Q09");
  queue.submit(KZ_OP_NOP);  // the first of the second pass
  ASSERT_TRUE(Client::eventually([&] { return q(1, KZ_Q_CQ_TAIL) == 3; }));
  EXPECT_FALSE(queue.poll().has_value());
}

TEST_F(QueueRig, MissedDoorbellComesBackWithTheNext) {
  HostQueue queue(client, 1, 6);
  queue.enable();
  inject("Q10", {{"kind", "now"}}, {{"every", 1}});
  auto missed = [&](uint64_t n) {
    return Client::eventually([&] { return client.faults.list()[0]["strikes"] == n; });
  };
  queue.ring();
  ASSERT_TRUE(missed(1));  // now the worker sleeps for sure
  queue.submit(KZ_OP_NOP);
  ASSERT_TRUE(missed(2));
  EXPECT_EQ(q(1, KZ_Q_SQ_HEAD), 0u);
  EXPECT_FALSE(queue.poll().has_value());
  client.faults.clear(0);
  queue.ring();
  queue.wait();
}

TEST_F(QueueRig, HangingQueueIsFreedByAReset) {
  HostQueue queue(client, 1, 5);
  queue.enable();
  inject("Q07", {{"kind", "now"}}, {{"every", 4}});
  for (int i = 0; i < 8; ++i) queue.submit(KZ_OP_NOP);
  int completions = 0;
  EXPECT_FALSE(Client::eventually([&] { return (completions += queue.poll().has_value()) == 8; }, 100ms));
  EXPECT_LT(completions, 4);
  client.faults.clear(0);
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
  queue.restart();
  queue.enable();
  queue.submit(KZ_OP_NOP);
  queue.wait();
}

TEST_F(QueueRig, CompletionInAnotherQueue) {
  HostQueue queue(client, 1, 4), other(client, 2, 4, 0x8000000);
  queue.enable();
  other.enable();
  inject("Q12", {{"kind", "once"}, {"n", 0u}}, {{"queue_offset", 1}});
  queue.submit(KZ_OP_NOP);
  EXPECT_EQ(other.wait().queue, 1u);
  EXPECT_FALSE(queue.poll().has_value());
}

TEST_F(QueueRig, OverflowUnreportedWithTheFault) {
  HostQueue queue(client, 1, 2);
  queue.enable();
  inject("Q16");
  for (int i = 0; i < 5; ++i) queue.submit(KZ_OP_NOP, false);
  queue.ring();
  EXPECT_TRUE(Client::eventually([&] { return q(1, KZ_Q_SQ_HEAD) == 5; }));
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_RUN});
}

TEST_F(QueueRig, OneQueueStarves) {
  HostQueue slow(client, 1, 4), fast(client, 2, 4, 0x8000000);
  slow.enable();
  fast.enable();
  inject("Q11", {{"kind", "now"}}, {{"queue_mod", 2}});
  auto time = [](HostQueue& q) {
    auto start = Clock::now();
    q.submit(KZ_OP_NOP);
    q.wait();
    return Clock::now() - start;
  };
  EXPECT_GE(time(slow), 20ms);
  EXPECT_LT(time(fast), 20ms);
}

}  // namespace
}  // namespace kz::softtpu
