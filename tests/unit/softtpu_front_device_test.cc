// SPDX-License-Identifier: GPL-2.0-or-later
// Registers, power and resets of the software TPU as a client sees them.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;
using namespace vfio_user;

TEST(SofttpuDevice, UnreachableBarsReadAllOnes) {
  Client c;
  c.version();
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), 0xffffffffu);  // memory space is off
  c.turn_on();
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), KZ_MAGIC);
  c.config(cfg::pm_control, 3, 2);
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), 0xffffffffu);
  EXPECT_EQ(c.config(0, 2), uint64_t{KZ_PCI_VENDOR_ID});
  c.config(cfg::pm_control, 0, 2);
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), KZ_MAGIC);
  c.device.set_gone(true);
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), 0xffffffffu);
  EXPECT_EQ(c.config(0, 4), 0xffffffffu);
  c.config(cfg::command, 0, 2);  // dropped
  c.device.set_gone(false);
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), KZ_MAGIC);
}

TEST(SofttpuDevice, RegisterAccessRules) {
  Client c;
  c.version();
  c.turn_on();
  c.reg(KZ_REG_SCRATCH, 0x12345678);
  EXPECT_EQ(c.region_read(0, KZ_REG_SCRATCH, 1), 0xffu);
  EXPECT_EQ(c.region_read(0, KZ_REG_SCRATCH, 2), 0xffffu);
  EXPECT_EQ(c.region_read(0, KZ_REG_SCRATCH + 2, 4), 0xffffffffu);
  EXPECT_EQ(c.region_read(0, KZ_REG_SCRATCH, 8), UINT64_MAX);
  c.region_write(0, KZ_REG_SCRATCH, 0, 2);
  c.region_write(0, KZ_REG_SCRATCH, 0, 8);
  EXPECT_EQ(c.reg(KZ_REG_SCRATCH), 0x12345678u);
  EXPECT_EQ(c.reg(0x0ffc), 0u);                                // unlisted
  EXPECT_EQ(c.region_read(0, KZ_REG_TELEMETRY + 4, 2), 1u);    // version, any width
  EXPECT_EQ(c.region_read(0, KZ_REG_TELEMETRY + 6, 2), 384u);  // size
  uint32_t cap = c.reg(KZ_REG_CAP);
  EXPECT_EQ(KZ_CAP_QUEUES(cap), 16u);
  EXPECT_EQ(KZ_CAP_IOVA_BITS(cap), 64u);
  EXPECT_GE(KZ_CAP_READY_100MS(cap), 1u);
}

TEST(SofttpuDevice, FlrRestoresTheDevice) {
  Client c;
  c.version();
  c.bring_up();
  c.reg(KZ_REG_SCRATCH, 1);
  uint32_t resets = c.reg(KZ_REG_RESET_COUNT);
  c.config(cfg::device_control + 1, 0x80, 1);
  EXPECT_EQ(c.reg(KZ_REG_MAGIC), 0xffffffffu);  // command register is back at zero
  EXPECT_EQ(c.config(cfg::command, 2), 0u);
  c.turn_on();
  EXPECT_EQ(c.reg(KZ_REG_SCRATCH), 0u);
  EXPECT_EQ(c.reg(KZ_REG_CTRL), 0u);
  EXPECT_EQ(c.reg(KZ_REG_RESET_COUNT), resets + 1);
  EXPECT_EQ(c.reg(KZ_REG_RESET_REASON), uint32_t{KZ_RR_FLR});
  c.bring_up();
  EXPECT_TRUE(c.call(cmd_device_reset, {}).ok());
  c.turn_on();
  EXPECT_EQ(c.reg(KZ_REG_RESET_REASON), uint32_t{KZ_RR_BUS});
  c.bring_up();
  c.reg(KZ_REG_RESET, 1);  // not the word
  EXPECT_EQ(c.reg(KZ_REG_RESET_REASON), uint32_t{KZ_RR_BUS});
  c.reg(KZ_REG_RESET, KZ_RESET_FIRMWARE);
  EXPECT_EQ(c.reg(KZ_REG_RESET_REASON), uint32_t{KZ_RR_FIRMWARE});  // the PCI side is untouched
  EXPECT_TRUE(c.reg(KZ_REG_STATUS) & KZ_STATUS_RESETTING);
  c.bring_up();
}

TEST(SofttpuDevice, ResetThatNeverEnds) {
  Client c;
  c.version();
  c.bring_up();
  c.faults.inject({{"row", "F05"}}, true);
  c.reg(KZ_REG_RESET, KZ_RESET_FIRMWARE);
  c.reg(KZ_REG_CTRL, KZ_CTRL_ENABLE);
  EXPECT_FALSE(Client::eventually([&] { return (c.reg(KZ_REG_STATUS) & KZ_STATUS_READY) != 0; }, 100ms));
  c.faults.clear(0);
  c.reg(KZ_REG_RESET, KZ_RESET_FIRMWARE);
  c.bring_up();
}

TEST(SofttpuDevice, NextClientFindsAFreshDevice) {
  Client c;
  c.version();
  c.bring_up();
  c.reg(KZ_REG_SCRATCH, 9);
  c.map(0x10000, 0x1000, 3, nullptr);
  c.session.reset();
  EXPECT_EQ(c.device.dma().windows(), 0u);
  c.session.emplace(c.device, c.sink);
  c.version();
  EXPECT_EQ(c.config(cfg::command, 2), 0u);
  c.turn_on();
  EXPECT_EQ(c.reg(KZ_REG_SCRATCH), 0u);
  EXPECT_EQ(c.reg(KZ_REG_RESET_REASON), uint32_t{KZ_RR_FLR});
}

TEST(SofttpuDevice, ProbesThatNeverSpeakResetNothing) {
  Client c;
  uint32_t before = c.device.engine().reset_count();
  c.session.reset();
  EXPECT_EQ(c.device.engine().reset_count(), before);
}

}  // namespace
}  // namespace kz::softtpu
