// SPDX-License-Identifier: GPL-2.0-or-later
// What the driver's INFO and a user's rights make of capabilities, and the kernel's counts of interrupts.
#include <gtest/gtest.h>

#include "shim/dev/capabilities.h"
#include "shim/dev/interrupts.h"
#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_regs.h"

namespace kz::dev {
namespace {

constexpr uint64_t dev_all_features = KZ_DF_URING | KZ_DF_URING_CANCEL | KZ_DF_MMAP | KZ_DF_FW_UPDATE |
                                      KZ_DF_ECC_INJECT | KZ_DF_RESET_FUNCTION | KZ_DF_RESET_DEVICE |
                                      KZ_DF_RESET_FIRMWARE;

// 16 queues, rings of 2^12, 500 ms to ready, 48 bits of bus address.
kz_info dev_full_info() {
  kz_info i{};
  i.cap = 16 | 12u << 8 | 5u << 16 | 48u << 24;
  i.feat = 0x7f;
  i.features = dev_all_features;
  i.hbm_bytes = uint64_t{1} << 30;
  i.hbm_page = 65536;
  i.hbm_geom = KZ_GEOM_DEFAULT;
  i.max_xfer = uint64_t{1} << 28;
  i.max_dim = 4096;
  i.dtypes = 0xf;
  i.max_order = 10;
  i.vectors = 16;
  return i;
}

constexpr Cap dev_privileged[] = {Cap::hbm_physical, Cap::aperture,      Cap::ecc_inject,
                                  Cap::fw_update,    Cap::watchdog,      Cap::reset_function,
                                  Cap::reset_device, Cap::reset_firmware};

TEST(DevCapabilities, LimitsAreTheDriversNotTheRegisters) {
  Limits l = capabilities_of(dev_full_info(), {.sys_admin = true, .memlock = {}}).limits;
  EXPECT_EQ(l.queues, 15) << "the driver keeps one of 16";
  EXPECT_EQ(l.max_depth, 1024u) << "2^10: the driver's limit, not the device's 2^12";
  EXPECT_EQ(l.vectors, 16);
  EXPECT_EQ(l.iova_bits, 48u);
  EXPECT_GT(l.ready_timeout, std::chrono::milliseconds(500));
  EXPECT_FALSE(l.hbm_cleared);
}

TEST(DevCapabilities, ClearedMemoryIsTheDevicesOrTheDriversPromise) {
  kz_info i = dev_full_info();
  i.feat |= KZ_FEAT_HBM_CLEARED;
  EXPECT_TRUE(capabilities_of(i, {}).limits.hbm_cleared);
  i = dev_full_info();
  i.features |= KZ_DF_CLEARS;
  EXPECT_TRUE(capabilities_of(i, {}).limits.hbm_cleared);
}

TEST(DevCapabilities, AnAdministratorHasAllThatTheDriverOffers) {
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = true, .memlock = {}});
  for (Cap cap : dev_privileged) EXPECT_TRUE(c.has(cap)) << to_string(cap);
  EXPECT_TRUE(c.blocked.empty());
}

TEST(DevCapabilities, AUserIsBlockedNotToldThatItIsMissing) {
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = false, .memlock = {}});
  for (Cap cap : dev_privileged) {
    EXPECT_FALSE(c.has(cap)) << to_string(cap);
    EXPECT_NE(c.blocked[cap].find("CAP_SYS_ADMIN"), std::string::npos) << to_string(cap);
  }
  for (Cap cap : {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::reset_queue, Cap::telemetry})
    EXPECT_TRUE(c.has(cap)) << to_string(cap);
}

TEST(DevCapabilities, WhatTheDriverKeepsToItselfIsMissingWithAReason) {
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = true, .memlock = {}});
  for (Cap cap : {Cap::raw_commands, Cap::raw_registers, Cap::dma_sg, Cap::dma_at}) {
    EXPECT_FALSE(c.has(cap)) << to_string(cap);
    EXPECT_FALSE(c.why_not[cap].empty()) << to_string(cap);
    EXPECT_FALSE(c.blocked.contains(cap)) << "it is no question of rights: " << to_string(cap);
  }
}

TEST(DevCapabilities, WhatNobodyOffersIsMissingForTheAdministratorToo) {
  kz_info i = dev_full_info();
  i.features = KZ_DF_URING;
  i.feat = 0;
  i.dtypes = 1u << KZ_DT_S8;
  Capabilities c = capabilities_of(i, {.sys_admin = true, .memlock = {}});
  for (Cap cap : {Cap::aperture, Cap::fw_update, Cap::ecc_inject, Cap::reset_function, Cap::reset_device,
                  Cap::reset_firmware, Cap::contexts, Cap::march, Cap::crc32c, Cap::vector, Cap::ecc,
                  Cap::matmul_bf16, Cap::matmul_f16, Cap::matmul_f32}) {
    EXPECT_FALSE(c.has(cap)) << to_string(cap);
    EXPECT_FALSE(c.why_not[cap].empty()) << to_string(cap);
  }
  EXPECT_TRUE(c.has(Cap::matmul_s8));
}

TEST(DevCapabilities, TooLittleToPinBlocksDma) {
  EXPECT_TRUE(capabilities_of(dev_full_info(), {.sys_admin = false, .memlock = 8u << 20}).has(Cap::dma));
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = false, .memlock = 4096});
  EXPECT_FALSE(c.has(Cap::dma));
  EXPECT_NE(c.blocked[Cap::dma].find("ulimit"), std::string::npos);
}

TEST(DevCapabilities, VectorsThatNobodyShowsBlockCounting) {
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = true, .memlock = {}, .interrupts = false});
  EXPECT_FALSE(c.has(Cap::interrupts));
  EXPECT_TRUE(c.blocked.contains(Cap::interrupts));
}

TEST(DevCapabilities, EveryOneOfTheDeviceHasAnAnswer) {
  Capabilities c = capabilities_of(dev_full_info(), {.sys_admin = false, .memlock = {}});
  for (int i = static_cast<int>(Cap::registers); i <= static_cast<int>(Cap::reset_firmware); ++i) {
    Cap cap = static_cast<Cap>(i);
    EXPECT_TRUE(c.has(cap) || c.why_not.contains(cap) || c.blocked.contains(cap)) << to_string(cap);
  }
}

TEST(DevSerial, IsWrittenAsEverywhere) {
  EXPECT_EQ(serial_text(0x4b5a000000000001), "4b-5a-00-00-00-00-00-01");
  EXPECT_EQ(serial_text(0), "");
  EXPECT_EQ(serial_text(~uint64_t{0}), "");
}

constexpr const char* dev_proc_interrupts =
    "           CPU0       CPU1       \n"
    "  0:        127          0   IO-APIC   2-edge      timer\n"
    " 25:          3          6  PCI-MSIX-0000:01:00.0   0-edge      kz0-0\n"
    " 26:          1          0  PCI-MSIX-0000:01:00.0   1-edge      kz0-1\n"
    " 27: 4000000000 4000000000  PCI-MSIX-0000:01:00.0   2-edge      kz0-2\n"
    " 41:          9          9  PCI-MSIX-0000:02:00.0   0-edge      kz1-0\n"
    " 42:          9          9  PCI-MSIX-0000:03:00.0   0-edge      kz0-x\n"
    " 43:          9          9  PCI-MSIX-0000:03:00.0   0-edge      xkz0-0\n"
    "NMI:          0          0   Non-maskable interrupts\n";

TEST(DevInterrupts, AreSummedOverProcessorsAndBelongToOneDevice) {
  EXPECT_EQ(parse_interrupts(dev_proc_interrupts, "kz0"), (std::vector<uint64_t>{9, 1, 8000000000}));
  EXPECT_EQ(parse_interrupts(dev_proc_interrupts, "kz1"), (std::vector<uint64_t>{18}));
  EXPECT_TRUE(parse_interrupts(dev_proc_interrupts, "kz").empty());
  EXPECT_TRUE(parse_interrupts("", "kz0").empty());
}

TEST(DevInterrupts, AHandlerThatClaimsAnAbsurdVectorIsNotBelieved) {
  EXPECT_TRUE(parse_interrupts("CPU0\n 1: 5 MSI kz0-99999999999999999999\n", "kz0").empty());
  EXPECT_TRUE(parse_interrupts("CPU0\n 1: 5 MSI kz0-99999999\n", "kz0").empty());
  EXPECT_EQ(parse_interrupts("CPU0\n 1: 5 MSI kz0-1\n", "kz0"), (std::vector<uint64_t>{0, 5}));
}

}  // namespace
}  // namespace kz::dev
