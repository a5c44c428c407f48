// SPDX-License-Identifier: GPL-2.0-or-later
// Expected values: PCI Express Base Specification r6.0 and <linux/pci_regs.h>.
#include <gtest/gtest.h>
#include <linux/pci_regs.h>

#include <cstring>
#include <set>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/config_model.h"

namespace kz::softtpu {
namespace {

ConfigOptions options(IrqMode irq = IrqMode::msix) {
  return {.irq = irq, .vectors = 16, .hbm_bar_bytes = uint64_t{1} << 30, .serial = 0x1122334455667788};
}

struct Space : ConfigModel {
  using ConfigModel::ConfigModel;
  uint64_t get(uint32_t at, unsigned n) const {
    uint64_t v = 0;
    read(at, std::as_writable_bytes(std::span(&v, 1)).first(n));
    return v;
  }
  bool put(uint32_t at, uint64_t v, unsigned n) {
    return write(at, std::as_bytes(std::span(&v, 1)).first(n));
  }
};

TEST(SofttpuConfig, HeaderIdentifiesTheDevice) {
  Space c(options());
  EXPECT_EQ(c.get(PCI_VENDOR_ID, 2), KZ_PCI_VENDOR_ID);
  EXPECT_EQ(c.get(PCI_DEVICE_ID, 2), KZ_PCI_DEVICE_ID);
  EXPECT_EQ(c.get(PCI_CLASS_REVISION, 4) >> 8, KZ_PCI_CLASS);
  EXPECT_EQ(c.get(PCI_HEADER_TYPE, 1), 0u);
  EXPECT_EQ(c.get(PCI_SUBSYSTEM_VENDOR_ID, 2), KZ_PCI_SUBSYS_VENDOR);
  EXPECT_EQ(c.get(PCI_COMMAND, 2), 0u);
  EXPECT_EQ(c.get(PCI_INTERRUPT_PIN, 1), 0u);
  EXPECT_TRUE(c.get(PCI_STATUS, 2) & PCI_STATUS_CAP_LIST);
}

TEST(SofttpuConfig, ReadOnlyBytesIgnoreWrites) {
  Space c(options());
  for (uint32_t at :
       {PCI_VENDOR_ID, PCI_CLASS_REVISION, PCI_SUBSYSTEM_VENDOR_ID, PCI_CAPABILITY_LIST, PCI_ROM_ADDRESS,
        PCI_BASE_ADDRESS_1, PCI_BASE_ADDRESS_3, PCI_CARDBUS_CIS, 0x34, 0xfc, 0x100, 0x150, 0x154, 0xffc}) {
    uint64_t before = c.get(at, 4);
    EXPECT_FALSE(c.put(at, 0xffffffff, 4));
    EXPECT_EQ(c.get(at, 4), before) << std::hex << at;
    EXPECT_FALSE(c.put(at, 0, 4));
    EXPECT_EQ(c.get(at, 4), before) << std::hex << at;
  }
}

TEST(SofttpuConfig, CommandRegisterMask) {
  Space c(options());
  c.put(PCI_COMMAND, 0xffff, 2);
  // There is no I/O space; special cycles, MWI, palette snoop, fast back-to-back are hardwired to zero
  // (7.5.1.1.3).
  EXPECT_EQ(c.get(PCI_COMMAND, 2), PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY |
                                       PCI_COMMAND_SERR | PCI_COMMAND_INTX_DISABLE);
  EXPECT_TRUE(c.memory_enabled());
  EXPECT_TRUE(c.bus_master());
}

TEST(SofttpuConfig, BarSizing) {
  Space c(options());
  for (uint32_t bar = PCI_BASE_ADDRESS_0; bar <= PCI_BASE_ADDRESS_5; bar += 4) c.put(bar, 0xffffffff, 4);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_0, 4), 0xffff0000u);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_1, 4), 0u);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_2, 4), 0xffffc000u);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_3, 4), 0u);
  uint64_t hbm = c.get(PCI_BASE_ADDRESS_4, 8);
  EXPECT_EQ(hbm & 0xf, PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
  EXPECT_EQ(~(hbm & ~uint64_t{0xf}) + 1, uint64_t{1} << 30);
  c.put(PCI_BASE_ADDRESS_4, 0x12345678c0000000, 8);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_4, 8), 0x12345678c000000cu);
}

TEST(SofttpuConfig, CapabilityChain) {
  Space c(options());
  std::set<uint8_t> ids;
  auto at = static_cast<uint32_t>(c.get(PCI_CAPABILITY_LIST, 1));
  for (int n = 0; at != 0 && n < 48; ++n) {
    EXPECT_EQ(at % 4, 0u);
    EXPECT_TRUE(ids.insert(static_cast<uint8_t>(c.get(at, 1))).second) << "twice";
    at = static_cast<uint32_t>(c.get(at + 1, 1));
  }
  EXPECT_EQ(ids, (std::set<uint8_t>{PCI_CAP_ID_PM, PCI_CAP_ID_MSIX, PCI_CAP_ID_EXP}));
  auto aer = static_cast<uint32_t>(c.get(0x100, 4));
  EXPECT_EQ(PCI_EXT_CAP_ID(aer), PCI_EXT_CAP_ID_ERR);
  EXPECT_EQ(PCI_EXT_CAP_VER(aer), 2u);
  auto dsn = static_cast<uint32_t>(c.get(PCI_EXT_CAP_NEXT(aer), 4));
  EXPECT_EQ(PCI_EXT_CAP_ID(dsn), PCI_EXT_CAP_ID_DSN);
  EXPECT_EQ(PCI_EXT_CAP_NEXT(dsn), 0u);
  EXPECT_EQ(c.get(PCI_EXT_CAP_NEXT(aer) + 4, 8), 0x1122334455667788u);
}

TEST(SofttpuConfig, PciExpressCapability) {
  Space c(options());
  EXPECT_EQ(c.get(cfg::pcie + PCI_EXP_FLAGS, 2) & PCI_EXP_FLAGS_VERS, 2u);
  EXPECT_EQ(c.get(cfg::pcie + PCI_EXP_FLAGS, 2) & PCI_EXP_FLAGS_TYPE, PCI_EXP_TYPE_ENDPOINT << 4);
  EXPECT_TRUE(c.get(cfg::pcie + PCI_EXP_DEVCAP, 4) & PCI_EXP_DEVCAP_FLR);
  EXPECT_TRUE(c.get(cfg::pcie + PCI_EXP_DEVCAP, 4) & PCI_EXP_DEVCAP_RBER);  // required since 1.1
  EXPECT_EQ(c.get(cfg::pcie + PCI_EXP_LNKCAP, 4) & PCI_EXP_LNKCAP_SLS, 5u);
  EXPECT_EQ((c.get(cfg::pcie + PCI_EXP_LNKCAP, 4) & PCI_EXP_LNKCAP_MLW) >> 4, 16u);
  EXPECT_EQ(c.link_speed(), 5u);
  EXPECT_EQ(c.link_width(), 16u);
  // Reset values of Device Control: relaxed ordering, no snoop, 512-byte read requests (7.5.3.4).
  EXPECT_EQ(c.get(cfg::device_control, 2),
            PCI_EXP_DEVCTL_RELAX_EN | PCI_EXP_DEVCTL_NOSNOOP_EN | PCI_EXP_DEVCTL_READRQ_512B);
}

TEST(SofttpuConfig, FlrBitActsAndReadsZero) {
  Space c(options());
  EXPECT_TRUE(c.put(cfg::device_control, PCI_EXP_DEVCTL_BCR_FLR, 2));
  EXPECT_EQ(c.get(cfg::device_control, 2) & PCI_EXP_DEVCTL_BCR_FLR, 0u);
  EXPECT_TRUE(c.put(cfg::device_control + 1, 0x80, 1));
  EXPECT_FALSE(c.put(cfg::device_control, 0x7fff, 2));
  EXPECT_FALSE(c.put(cfg::device_control, 0xff, 1));
}

TEST(SofttpuConfig, WriteOneToClear) {
  Space c(options());
  EXPECT_EQ(c.get(PCI_STATUS, 2), PCI_STATUS_CAP_LIST);
  c.put(PCI_STATUS, 0xffff, 2);
  EXPECT_EQ(c.get(PCI_STATUS, 2), PCI_STATUS_CAP_LIST);  // a one sets nothing
  c.put(cfg::pcie + PCI_EXP_DEVSTA, 0xffff, 2);
  EXPECT_EQ(c.get(cfg::pcie + PCI_EXP_DEVSTA, 2), 0u);
  c.put(cfg::aer + PCI_ERR_COR_STATUS, 0xffffffff, 4);
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_COR_STATUS, 4), 0u);
}

TEST(SofttpuConfig, AerResetValuesAndMasks) {
  Space c(options());
  // 7.8.4.4: severity resets to fatal for DLP (4), FCP (13), receiver overflow (17), malformed TLP (18),
  // internal (22).
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_UNCOR_SEVER, 4), PCI_ERR_UNC_DLP | PCI_ERR_UNC_FCP |
                                                          PCI_ERR_UNC_RX_OVER | PCI_ERR_UNC_MALF_TLP |
                                                          PCI_ERR_UNC_INTN);
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_COR_MASK, 4), PCI_ERR_COR_ADV_NFAT | PCI_ERR_COR_INTERNAL);
  c.put(cfg::aer + PCI_ERR_UNCOR_MASK, 0xffffffff, 4);
  uint64_t mask = c.get(cfg::aer + PCI_ERR_UNCOR_MASK, 4);
  EXPECT_TRUE(mask & PCI_ERR_UNC_COMP_TIME);
  EXPECT_FALSE(mask & 0xf) << "reserved bits";
}

TEST(SofttpuConfig, PowerStates) {
  Space c(options());
  EXPECT_TRUE(c.get(cfg::pm_control, 2) & PCI_PM_CTRL_NO_SOFT_RESET);
  c.put(cfg::pm_control, 3, 2);
  EXPECT_TRUE(c.in_d3());
  c.put(cfg::pm_control, 1, 2);  // D1 is not supported: stays
  EXPECT_TRUE(c.in_d3());
  c.put(cfg::pm_control, 0, 2);
  EXPECT_FALSE(c.in_d3());
}

TEST(SofttpuConfig, FlrKeepsWhatTheSpecificationKeeps) {
  Space c(options());
  c.put(PCI_COMMAND, 0x6, 2);
  c.put(PCI_BASE_ADDRESS_0, 0xfe000000, 4);
  c.put(cfg::msi + PCI_MSIX_FLAGS, PCI_MSIX_FLAGS_ENABLE, 2);
  c.put(cfg::device_control, 0x283f, 2);  // Max_Payload_Size 001b
  c.put(cfg::link_control, PCI_EXP_LNKCTL_CCC, 2);
  c.put(cfg::aer + PCI_ERR_UNCOR_MASK, PCI_ERR_UNC_COMP_TIME, 4);  // RWS
  c.reset(ConfigModel::Reset::flr);
  EXPECT_EQ(c.get(PCI_COMMAND, 2), 0u);
  EXPECT_EQ(c.get(PCI_BASE_ADDRESS_0, 4), 0u);
  EXPECT_FALSE(c.msi_enabled());
  EXPECT_EQ(c.get(cfg::device_control, 2), 0x2830u);
  EXPECT_EQ(c.get(cfg::link_control, 2), PCI_EXP_LNKCTL_CCC);
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_UNCOR_MASK, 4), PCI_ERR_UNC_COMP_TIME);
  c.reset(ConfigModel::Reset::bus);
  EXPECT_EQ(c.get(cfg::device_control, 2), 0x2810u);
  EXPECT_EQ(c.get(cfg::link_control, 2), 0u);
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_UNCOR_MASK, 4), PCI_ERR_UNC_COMP_TIME);  // sticky
  c.reset(ConfigModel::Reset::power_on);
  EXPECT_EQ(c.get(cfg::aer + PCI_ERR_UNCOR_MASK, 4), PCI_ERR_UNC_INTN);
}

TEST(SofttpuConfig, MsixCapability) {
  Space c(options());
  c.put(cfg::msi + PCI_MSIX_FLAGS, 0xffff, 2);
  uint64_t control = c.get(cfg::msi + PCI_MSIX_FLAGS, 2);
  EXPECT_EQ(control, 15u | PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL);
  EXPECT_TRUE(c.msi_function_masked());
  EXPECT_EQ(c.get(cfg::msi + PCI_MSIX_TABLE, 4), 0u | KZ_BAR_MSIX);
  EXPECT_EQ(c.get(cfg::msi + PCI_MSIX_PBA, 4), KZ_MSIX_PBA_OFFSET | KZ_BAR_MSIX);
}

TEST(SofttpuConfig, MsiCapability) {
  Space c(options(IrqMode::msi));
  EXPECT_EQ(c.get(cfg::msi, 1), PCI_CAP_ID_MSI);
  uint64_t control = c.get(cfg::msi + PCI_MSI_FLAGS, 2);
  EXPECT_EQ((control & PCI_MSI_FLAGS_QMASK) >> 1, 4u);  // 16 vectors
  EXPECT_TRUE(control & PCI_MSI_FLAGS_64BIT);
  EXPECT_TRUE(control & PCI_MSI_FLAGS_MASKBIT);
  c.put(cfg::msi + PCI_MSI_FLAGS, PCI_MSI_FLAGS_ENABLE | (2u << 4), 2);
  EXPECT_EQ(c.msi_vectors_enabled(), 4u);
  c.put(cfg::msi + PCI_MSI_MASK_64, 0xffffffff, 4);
  EXPECT_EQ(c.msi_mask_bits(), 0xffffu);
  c.enable_msi(true, 9);
  EXPECT_EQ(c.msi_vectors_enabled(), 16u);
}

TEST(SofttpuConfig, LinkStatusOutlivesResets) {
  Space c(options());
  c.set_link(4, 3);
  for (auto kind : {ConfigModel::Reset::flr, ConfigModel::Reset::bus, ConfigModel::Reset::power_on}) {
    c.reset(kind);
    EXPECT_EQ(c.link_width(), 4u);
    EXPECT_EQ(c.link_speed(), 3u);
  }
  EXPECT_TRUE(c.get(cfg::link_status, 2) & PCI_EXP_LNKSTA_SLC);
}

TEST(SofttpuConfig, AccessPastTheEndIsHarmless) {
  Space c(options());
  EXPECT_EQ(c.get(0xffe, 8), 0u);
  EXPECT_FALSE(c.put(0xffe, UINT64_MAX, 8));
}

}  // namespace
}  // namespace kz::softtpu
