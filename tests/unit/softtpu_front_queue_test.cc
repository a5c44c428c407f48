// SPDX-License-Identifier: GPL-2.0-or-later
// The queue protocol of shim/uapi/kz_cmd.h, driven by hand against the software TPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;

struct QueueRig : ::testing::Test {
  explicit QueueRig(std::chrono::nanoseconds service = 0ns) : client(with(service)) {
    client.version();
    client.bring_up();
  }
  static DeviceOptions with(std::chrono::nanoseconds service) {
    DeviceOptions o = small_device();
    o.service_time = service;
    return o;
  }
  void inject(const char* row, const nlohmann::json& trigger = {{"kind", "now"}},
              const nlohmann::json& params = {}) {
    nlohmann::json spec = {{"row", row}, {"trigger", trigger}};
    if (!params.is_null()) spec["params"] = params;
    client.faults.inject(spec, true);
  }
  static kz_cmd abort_of(uint16_t queue, uint16_t cid) {
    kz_cmd c{};
    c.opcode = KZ_OP_ABORT;
    c.u.abort.queue = queue;
    c.u.abort.cid = cid;
    return c;
  }
  uint32_t q(uint16_t id, uint32_t reg) { return client.reg(KZ_REG_QUEUE(id) + reg); }
  Client client;
};

TEST_F(QueueRig, RunsCommandsOverManyWraps) {
  HostQueue queue(client, 1, 3);
  queue.enable();
  for (uint32_t i = 0; i < 100; ++i) {
    uint16_t cid = queue.submit(KZ_OP_NOP);
    kz_cqe cqe = queue.wait();
    EXPECT_EQ(cqe.cid, cid);
    EXPECT_EQ(cqe.queue, 1u);
    EXPECT_EQ(KZ_CQE_CODE(cqe.status), KZ_ST_OK);
    EXPECT_EQ(cqe.sq_head, static_cast<uint16_t>(i + 1));
    EXPECT_EQ(cqe.result, 0u);
    EXPECT_TRUE(queue.interrupted(10s));
    EXPECT_EQ(queue.interrupts(), 1u);
  }
  EXPECT_EQ(q(1, KZ_Q_SQ_HEAD), 100u);
  EXPECT_EQ(q(1, KZ_Q_CQ_TAIL), 100u);
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_RUN});
}

TEST_F(QueueRig, TrappedDoorbellWorksToo) {
  HostQueue queue(client, 2, 4);
  queue.enable();
  queue.submit(KZ_OP_TIMESTAMP, false);
  client.reg(KZ_REG_DOORBELL(2), 123);
  kz_cqe first = queue.wait();
  queue.submit(KZ_OP_TIMESTAMP, false);
  client.reg(KZ_REG_DOORBELL(2), 0);
  EXPECT_GE(queue.wait().result, first.result);
}

TEST_F(QueueRig, QuietCommandsRaiseNothing) {
  HostQueue queue(client, 0, 4);
  queue.enable();
  kz_cmd c{};
  c.opcode = KZ_OP_NOP;
  c.flags = KZ_CMD_NOIRQ;
  queue.submit(c);
  queue.wait();
  queue.submit(KZ_OP_NOP);
  queue.wait();
  EXPECT_TRUE(queue.interrupted(10s));
  EXPECT_EQ(queue.interrupts(), 1u);
}

TEST_F(QueueRig, CopiesThroughSharedMemoryAndByMessages) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  for (int i = 0; i < 5000; ++i) queue.data()[i] = static_cast<std::byte>(i * 3);
  kz_cmd c{};
  c.opcode = KZ_OP_COPY;
  c.u.copy = {
      .src = queue.data_iova(), .dst = 0x10000, .len = 5000, .src_space = KZ_SP_HOST, .dst_space = KZ_SP_HBM};
  queue.submit(c);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_OK);
  client.map(0x40000000, 0x10000, 3, nullptr);  // reached by messages
  c.u.copy = {
      .src = 0x10000, .dst = 0x40000000, .len = 5000, .src_space = KZ_SP_HBM, .dst_space = KZ_SP_HOST};
  queue.submit(c);
  std::vector<std::byte> got(5000);
  for (size_t done = 0; done < 5000;) {
    auto request = client.sink.request(10s);
    ASSERT_TRUE(request.has_value());
    auto access = request->as<vfio_user::DmaAccess>();
    std::copy(request->payload.begin() + 16, request->payload.end(),
              got.begin() + static_cast<long>(access.address - 0x40000000));
    done += access.count;
    vfio_user::Header h{request->header.id, vfio_user::cmd_dma_write, 32, vfio_user::flag_reply, 0};
    client.session->receive(bytes_of(h) + bytes_of(access), {});
  }
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_OK);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(got[i], static_cast<std::byte>(i * 3)) << i;
}

TEST_F(QueueRig, RingsInMemoryReachedByMessages) {
  HostQueue queue(client, 3, 2, 0x7000000000, true);
  auto& memory = queue.memory();
  // Answers the device's reads and writes as a client would.
  auto serve = [&] {
    while (auto request = client.sink.request(0ms)) {
      auto access = request->as<vfio_user::DmaAccess>();
      std::byte* at = memory.data() + (access.address - 0x7000000000);
      bool reads = request->header.command == vfio_user::cmd_dma_read;
      std::vector<std::byte> data;
      if (reads) data.assign(at, at + access.count);
      if (!reads) std::copy(request->payload.begin() + 16, request->payload.end(), at);
      vfio_user::Header h{request->header.id, request->header.command,
                          static_cast<uint32_t>(32 + data.size()), vfio_user::flag_reply, 0};
      client.session->receive(bytes_of(h) + bytes_of(access) + data, {});
    }
  };
  queue.enable();
  for (int i = 0; i < 9; ++i) {
    uint16_t cid = queue.submit(KZ_OP_NOP);
    std::optional<kz_cqe> cqe;
    ASSERT_TRUE(Client::eventually([&] {
      serve();
      return (cqe = queue.poll()).has_value();
    }));
    queue.consume();
    EXPECT_EQ(cqe->cid, cid);
  }
}

TEST_F(QueueRig, NeverWritesOverUnconsumedCompletions) {
  HostQueue queue(client, 1, 2);
  queue.enable();
  for (int i = 0; i < 4; ++i) queue.submit(KZ_OP_NOP);
  ASSERT_TRUE(Client::eventually([&] { return q(1, KZ_Q_CQ_TAIL) == 4; }));
  std::vector<kz_cqe> seen;
  for (int i = 0; i < 4; ++i) seen.push_back(*queue.poll());
  // Consumed but not told: four more would not fit. The strict rule is the host's to keep; the device just
  // waits.
  queue.submit(KZ_OP_NOP, false);
  EXPECT_FALSE(queue.poll().has_value());
  queue.consume();
  queue.ring();
  queue.wait();
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_RUN});
}

TEST_F(QueueRig, MoreCommandsThanEntriesIsAnOverflow) {
  HostQueue queue(client, 1, 2);
  queue.enable();
  for (int i = 0; i < 5; ++i) queue.submit(KZ_OP_NOP, false);
  queue.ring();
  EXPECT_TRUE(Client::eventually([&] { return queue.state() == (KZ_QSTATE_ERROR | KZ_QERR_OVERFLOW << 8); }));
  // Only a queue reset helps.
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_OFF});
  EXPECT_EQ(q(1, KZ_Q_CTRL), 0u);
  queue.restart();
  queue.enable();
  queue.submit(KZ_OP_NOP);
  queue.wait();
}

TEST_F(QueueRig, OneMoreThanOutstandingIsAnOverflowToo) {
  HostQueue queue(client, 1, 2);
  queue.enable();
  for (int i = 0; i < 4; ++i) queue.submit(KZ_OP_NOP);
  ASSERT_TRUE(Client::eventually([&] { return q(1, KZ_Q_CQ_TAIL) == 4; }));
  queue.submit(KZ_OP_NOP);  // nothing consumed
  EXPECT_TRUE(Client::eventually([&] { return queue.state() == (KZ_QSTATE_ERROR | KZ_QERR_OVERFLOW << 8); }));
}

TEST_F(QueueRig, BadConfigurations) {
  HostQueue queue(client, 1, 4);
  const std::pair<uint32_t, uint32_t> bad[] = {
      {KZ_Q_ORDER, 0},   {KZ_Q_ORDER, 13},          {KZ_Q_SQ_LO, 0x100800}, {KZ_Q_CQ_LO, 0x1001},
      {KZ_Q_VECTOR, 16}, {KZ_Q_DBREC_LO, 0x100020}, {KZ_Q_CONTEXT, 77},     {KZ_Q_ORDER, UINT32_MAX}};
  for (auto [reg, value] : bad) {
    queue.setup();
    client.reg(KZ_REG_QUEUE(1) + reg, value);
    queue.enable();
    EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_ERROR | KZ_QERR_BAD_CONFIG << 8}) << std::hex << reg;
    client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
    client.reg(KZ_REG_QUEUE(1) + KZ_Q_CONTEXT, 0);
  }
}

TEST_F(QueueRig, UnreachableRingsAreADmaError) {
  HostQueue queue(client, 1, 4);
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_DBREC_LO, 0xdead0000 & ~63u);
  queue.enable();
  queue.ring();
  EXPECT_TRUE(Client::eventually([&] { return queue.state() == (KZ_QSTATE_ERROR | KZ_QERR_DMA << 8); }));
}

TEST_F(QueueRig, BusMasterOffStopsDmaUnlessTheFaultIsPlanted) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  inject("D18");
  client.config(cfg::command, cfg::command_memory, 2);
  queue.submit(KZ_OP_NOP);
  queue.wait();
  client.faults.clear(0);
  queue.ring();
  EXPECT_TRUE(Client::eventually([&] { return queue.state() == (KZ_QSTATE_ERROR | KZ_QERR_DMA << 8); }));
}

TEST_F(QueueRig, DisablingTheDeviceDropsQueues) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  queue.submit(KZ_OP_NOP);
  queue.wait();
  client.reg(KZ_REG_CTRL, 0);
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_OFF});
  EXPECT_EQ(q(1, KZ_Q_SQ_HEAD), 0u);
  queue.restart();
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_ENABLE);
  queue.submit(KZ_OP_NOP);
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_OFF});  // waits for the device
  client.reg(KZ_REG_CTRL, KZ_CTRL_ENABLE);
  queue.wait();
}

TEST_F(QueueRig, ReservedFieldsOfFenceAndAbort) {
  HostQueue queue(client, 1, 4);
  queue.enable();
  kz_cmd fence{};
  fence.opcode = KZ_OP_FENCE;
  queue.submit(fence);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_OK);
  fence.u.raw[55] = 1;
  queue.submit(fence);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_BAD_FIELD);
  fence = {};
  fence.opcode = KZ_OP_FENCE;
  fence.flags = 0x08;
  queue.submit(fence);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_BAD_FIELD);
  queue.submit(abort_of(99, 1));
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_BAD_FIELD);
  queue.submit(abort_of(1, 999));
  kz_cqe none = queue.wait();
  EXPECT_EQ(KZ_CQE_CODE(none.status), KZ_ST_OK);
  EXPECT_EQ(none.result, 0u);
}

TEST_F(QueueRig, FlrWithCommandsInFlight) {
  for (int round = 0; round < 20; ++round) {
    HostQueue queue(client, 1, 4, 0x100000 + static_cast<uint64_t>(round) * 0x1000000);
    queue.enable();
    for (int i = 0; i < 10; ++i) queue.submit(KZ_OP_NOP);
    client.config(cfg::device_control + 1, 0x80, 1);
    client.bring_up();
    EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_OFF});
    queue.setup();
    queue.restart();
    queue.enable();
    queue.submit(KZ_OP_NOP);
    queue.wait();
    client.reg(KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
  }
}

TEST_F(QueueRig, ManyQueuesAtOnce) {
  std::vector<std::unique_ptr<HostQueue>> queues;
  for (uint16_t id = 0; id < 6; ++id)
    queues.push_back(std::make_unique<HostQueue>(client, id, 5, 0x100000 + uint64_t{id} * 0x1000000));
  for (auto& queue : queues) queue->enable();
  std::vector<std::thread> hosts;
  for (auto& queue : queues)
    hosts.emplace_back([&q = *queue] {
      for (int i = 0; i < 300; ++i) {
        uint16_t cid = q.submit(KZ_OP_NOP);
        ASSERT_EQ(q.wait().cid, cid);
      }
    });
  for (auto& t : hosts) t.join();
}

TEST_F(QueueRig, ContextDestroyStopsItsQueues) {
  HostQueue root(client, 0, 4);
  root.enable();
  root.submit(KZ_OP_CTX_CREATE);
  kz_cqe made = root.wait();
  ASSERT_EQ(KZ_CQE_CODE(made.status), KZ_ST_OK);
  HostQueue queue(client, 1, 4, 0x8000000);
  client.reg(KZ_REG_QUEUE(1) + KZ_Q_CONTEXT, static_cast<uint32_t>(made.result));
  queue.enable();
  queue.submit(KZ_OP_NOP);
  queue.wait();
  kz_cmd destroy{};
  destroy.opcode = KZ_OP_CTX_DESTROY;
  destroy.u.ctx.ctx = static_cast<uint32_t>(made.result);
  root.submit(destroy);
  EXPECT_EQ(KZ_CQE_CODE(root.wait().status), KZ_ST_OK);
  EXPECT_EQ(queue.state(), uint32_t{KZ_QSTATE_OFF});
  EXPECT_EQ(q(1, KZ_Q_CTRL) & KZ_QCTRL_ENABLE, 0u);
}

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
  auto start = Clock::now();
  for (int i = 0; i < 50; ++i) queue.submit(KZ_OP_NOP, false);
  queue.ring();
  for (int i = 0; i < 50; ++i) queue.wait();
  auto took = Clock::now() - start;
  EXPECT_GE(took, 100ms);
  EXPECT_LT(took, 130ms);  // lateness of single sleeps must not add up
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
