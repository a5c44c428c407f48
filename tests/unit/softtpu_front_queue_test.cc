// SPDX-License-Identifier: GPL-2.0-or-later
// The queue protocol of shim/uapi/kz_cmd.h, driven by hand against the software TPU.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;

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

// The client holds the doorbell's eventfd too: blocking and full, a write to it would never end.
TEST_F(QueueRig, NoDoorbellHoldsTheDeviceUp) {
  HostQueue queue(client, 2, 4);
  int doorbell = client.device.doorbell_fds()[2];
  ASSERT_EQ(::fcntl(doorbell, F_SETFL, 0), 0);
  signal_eventfd(doorbell, 0xfffffffffffffffe);
  client.reg(KZ_REG_DOORBELL(2), 1);  // returns
  queue.enable();
  queue.submit(KZ_OP_NOP, false);
  client.reg(KZ_REG_DOORBELL(2), 1);
  EXPECT_EQ(KZ_CQE_CODE(queue.wait().status), KZ_ST_OK);
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

}  // namespace
}  // namespace kz::softtpu
