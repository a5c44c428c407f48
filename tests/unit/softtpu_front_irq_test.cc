// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace vfio_user;

constexpr uint32_t connect = set_data_eventfd | set_action_trigger;

struct IrqRig : ::testing::Test {
  explicit IrqRig(IrqMode mode = IrqMode::msix) : irqs(mode, 16) {
    irqs.set_function(true, false, 16, 0);
    irqs.set_reachable(true);
  }
  int set(uint32_t flags, uint32_t start, uint32_t count, size_t nfds = 0, std::vector<std::byte> data = {},
          uint32_t index = irq_msix) {
    std::vector<Fd> fds;
    for (size_t i = 0; i < nfds; ++i) fds.push_back(events[start + i].dup());
    return irqs.set_irqs({static_cast<uint32_t>(20 + data.size()), flags, index, start, count}, data, fds);
  }
  uint64_t count(unsigned v) { return drain_eventfd(events[v].get()); }
  void SetUp() override {
    for (int i = 0; i < 32; ++i) events.push_back(make_eventfd(true));
  }
  void write_control(unsigned v, uint32_t value) {
    irqs.table_write(v * 16 + 12, std::as_bytes(std::span(&value, 1)));
  }
  uint32_t table(uint32_t at) {
    uint32_t v = 0;
    irqs.table_read(at, std::as_writable_bytes(std::span(&v, 1)));
    return v;
  }
  Interrupts irqs;
  std::vector<Fd> events;
};

TEST_F(IrqRig, ComesInChunks) {
  ASSERT_EQ(set(connect, 0, 8, 8), 0);
  ASSERT_EQ(set(connect, 8, 7, 7), 0);
  EXPECT_EQ(irqs.connected(), 15u);
  for (unsigned v = 0; v < 16; ++v) irqs.raise(v);
  for (unsigned v = 0; v < 15; ++v) EXPECT_EQ(count(v), 1u) << v;
  EXPECT_EQ(irqs.pending(), 1u << 15);  // nobody to tell
  ASSERT_EQ(set(connect, 15, 1, 1), 0);
  EXPECT_EQ(count(15), 1u);
}

TEST_F(IrqRig, UnsetsWithoutDescriptors) {
  ASSERT_EQ(set(connect, 0, 4, 4), 0);
  ASSERT_EQ(set(connect, 1, 2), 0);
  irqs.raise(1);
  irqs.raise(3);
  EXPECT_EQ(count(1), 0u);
  EXPECT_EQ(count(3), 1u);
  ASSERT_EQ(set(set_data_none | set_action_trigger, 0, 0), 0);
  EXPECT_EQ(irqs.connected(), 0u);
}

// linux/vfio.h: count 0 with DATA_NONE and ACTION_TRIGGER disables the interrupts of that index.
TEST_F(IrqRig, SwitchingAnotherIndexOffLeavesTheVectorsAlone) {
  ASSERT_EQ(set(connect, 0, 2, 2), 0);
  for (uint32_t other : {irq_intx, irq_msi, irq_err, irq_req})
    EXPECT_EQ(set(set_data_none | set_action_trigger, 0, 0, 0, {}, other), 0) << other;
  EXPECT_EQ(irqs.connected(), 2u);
  irqs.raise(1);
  EXPECT_EQ(count(1), 1u);
}

TEST_F(IrqRig, RefusesNonsense) {
  EXPECT_EQ(set(connect, 0, 17, 0), EINVAL);
  EXPECT_EQ(set(connect, 16, 1, 1), EINVAL);
  EXPECT_EQ(set(connect, UINT32_MAX, 2), EINVAL);
  EXPECT_EQ(set(connect, 1, UINT32_MAX), EINVAL);
  EXPECT_EQ(set(connect, 0, 3, 2), EINVAL);
  EXPECT_EQ(set(set_data_eventfd, 0, 1, 1), EINVAL);
  EXPECT_EQ(set(connect | set_data_none, 0, 1), EINVAL);
  EXPECT_EQ(set(connect | set_action_mask, 0, 1, 1), EINVAL);
  EXPECT_EQ(set(connect | 0x40, 0, 1, 1), EINVAL);
  EXPECT_EQ(set(set_data_none | set_action_trigger, 0, 1, 1), EINVAL);
  EXPECT_EQ(set(set_data_bool | set_action_trigger, 0, 2, 0, {std::byte{1}}), EINVAL);
  EXPECT_EQ(set(connect, 0, 1, 1, {}, irq_intx), EINVAL);
  EXPECT_EQ(set(connect, 0, 1, 1, {}, irq_msi), EINVAL);
  EXPECT_EQ(set(connect, 0, 1, 1, {}, 5), EINVAL);
  EXPECT_EQ(set(set_data_eventfd | set_action_mask, 0, 1, 1), ENOTSUP);
  std::vector<Fd> pipe_like;
  pipe_like.push_back(make_memfd("not an eventfd", 4_KiB));
  EXPECT_EQ(irqs.set_irqs({20, connect, irq_msix, 0, 1}, {}, pipe_like), EINVAL);
}

TEST_F(IrqRig, ClientMasksAndTriggers) {
  ASSERT_EQ(set(connect, 0, 2, 2), 0);
  ASSERT_EQ(set(set_data_none | set_action_mask, 0, 2), 0);
  irqs.raise(0);
  EXPECT_EQ(count(0), 0u);
  ASSERT_EQ(set(set_data_bool | set_action_unmask, 0, 2, 0, {std::byte{1}, std::byte{0}}), 0);
  EXPECT_EQ(count(0), 1u);  // was pending
  irqs.raise(1);
  EXPECT_EQ(count(1), 0u);
  ASSERT_EQ(set(set_data_bool | set_action_trigger, 0, 2, 0, {std::byte{0}, std::byte{1}}), 0);
  EXPECT_EQ(count(0), 0u);
  EXPECT_EQ(count(1), 1u);  // a loopback, whatever the masks
}

TEST_F(IrqRig, TableMaskAndPendingBits) {
  ASSERT_EQ(set(connect, 0, 4, 4), 0);
  EXPECT_EQ(table(2 * 16 + 12), 1u);  // masked after reset, as the table reads
  irqs.raise(2);
  EXPECT_EQ(count(2), 1u);  // but a client that never wrote it is not held to it
  write_control(2, 1);
  irqs.raise(2);
  EXPECT_EQ(count(2), 0u);
  EXPECT_EQ(table(KZ_MSIX_PBA_OFFSET), 1u << 2);
  write_control(2, 0xfffffffe);
  EXPECT_EQ(table(2 * 16 + 12), 0u);  // reserved bits stay zero
  EXPECT_EQ(count(2), 1u);
  EXPECT_EQ(table(KZ_MSIX_PBA_OFFSET), 0u);
  uint32_t ones = 0xffffffff;
  irqs.table_write(KZ_MSIX_PBA_OFFSET, std::as_bytes(std::span(&ones, 1)));
  EXPECT_EQ(table(KZ_MSIX_PBA_OFFSET), 0u);
}

TEST_F(IrqRig, FunctionDeviceAndBusMasks) {
  ASSERT_EQ(set(connect, 0, 4, 4), 0);
  irqs.set_function(true, true, 16, 0);
  irqs.raise(0);
  EXPECT_EQ(count(0), 0u);
  irqs.set_device_mask(1);
  irqs.set_function(true, false, 16, 0);
  EXPECT_EQ(count(0), 0u);  // the other mask holds
  irqs.set_device_mask(0);
  EXPECT_EQ(count(0), 1u);
  irqs.set_reachable(false);
  irqs.raise(1);
  EXPECT_EQ(count(1), 0u);
  irqs.set_reachable(true);
  EXPECT_EQ(count(1), 1u);
  irqs.set_function(false, false, 16, 0);
  irqs.raise(3);
  irqs.set_function(true, false, 16, 0);
  EXPECT_EQ(count(3), 0u);  // disabled: not even pending
}

TEST_F(IrqRig, ResetKeepsEventfds) {
  ASSERT_EQ(set(connect, 0, 4, 4), 0);
  irqs.set_device_mask(3);
  irqs.raise(1);
  irqs.reset();
  EXPECT_EQ(irqs.pending(), 0u);
  EXPECT_EQ(irqs.device_mask(), 0u);
  irqs.raise(1);
  EXPECT_EQ(count(1), 1u);
}

TEST_F(IrqRig, FullCounterDoesNotStopTheDevice) {
  Fd blocking = make_eventfd(false);
  std::vector<Fd> fds;
  fds.push_back(blocking.dup());
  ASSERT_EQ(irqs.set_irqs({20, connect, irq_msix, 0, 1}, {}, fds), 0);
  signal_eventfd(blocking.get(), UINT64_MAX - 1);
  irqs.raise(0);  // a blocking descriptor with a full counter: would hang for ever
  EXPECT_EQ(drain_eventfd(blocking.get()), UINT64_MAX - 1);
}

struct MsiRig : IrqRig {
  MsiRig() : IrqRig(IrqMode::msi) {}
};

TEST_F(MsiRig, VectorsFoldOntoTheAllocatedOnes) {
  ASSERT_EQ(set(connect, 0, 4, 4, {}, irq_msi), 0);
  irqs.set_function(true, false, 4, 0);
  irqs.raise(6);
  EXPECT_EQ(count(2), 1u);
  irqs.set_function(true, false, 4, 1u << 2);
  irqs.raise(2);
  EXPECT_EQ(count(2), 0u);
  EXPECT_EQ(irqs.pending(), 1u << 2);
  irqs.set_function(true, false, 4, 0);
  EXPECT_EQ(count(2), 1u);
}

}  // namespace
}  // namespace kz::softtpu
