// SPDX-License-Identifier: GPL-2.0-or-later
// Reset values and access attributes of every register of the configuration space, section by section of the
// specification (PCI Express Base r6.0).
#include <linux/pci_regs.h>

#include <bit>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/config_model.h"

namespace kz::softtpu {

namespace {

// PCI Express capability fields that <linux/pci_regs.h> does not name.
constexpr uint32_t lanes = 16, gts32 = 5;
constexpr uint32_t speeds_to_32 = 0x3e;  // Supported Link Speeds Vector: 2.5, 5, 8, 16, 32 GT/s
constexpr uint16_t next_pm = cfg::msi, next_msi = cfg::pcie;

// 7.8.4: error bits that an endpoint of this kind implements.
constexpr uint32_t aer_uncorrectable = 0x005ff010;  // DLP, PTLP .. UR (12..20), UIE
constexpr uint32_t aer_severity =
    0x00462010;  // reset value: DLP, FCP, receiver overflow, MTLP, UIE are fatal
constexpr uint32_t aer_correctable =
    0x000071c1;  // RE, bad TLP, bad DLLP, rollover, timer, advisory, internal
constexpr uint32_t aer_correctable_masked =
    0x6000;  // reset value: advisory non-fatal and internal are masked

}  // namespace

// 7.5.1.1 and 7.5.1.2, type 0.
void ConfigModel::define_header() {
  define(PCI_VENDOR_ID, 2, {.value = KZ_PCI_VENDOR_ID});
  define(PCI_DEVICE_ID, 2, {.value = KZ_PCI_DEVICE_ID});
  // Memory Space, Bus Master, Parity Error Response, SERR#, Interrupt Disable; there is no I/O space.
  define(PCI_COMMAND, 2, {.rw = 0x0546});
  define(PCI_STATUS, 2, {.value = PCI_STATUS_CAP_LIST, .w1c = 0xf900});
  define(PCI_CLASS_REVISION, 4, {.value = (uint64_t{KZ_PCI_CLASS} << 8) | 0x01});
  define(PCI_CACHE_LINE_SIZE, 1, {.rw = 0xff});
  define(PCI_BASE_ADDRESS_0, 4, {.rw = ~uint32_t{KZ_BAR0_SIZE - 1}});
  define(PCI_BASE_ADDRESS_2, 4, {.rw = ~uint32_t{KZ_BAR2_SIZE - 1}});
  uint64_t hbm = ~(options_.hbm_bar_bytes - 1);
  define(PCI_BASE_ADDRESS_4, 8,
         {.value = PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH, .rw = hbm & ~uint64_t{0xf}});
  define(PCI_SUBSYSTEM_VENDOR_ID, 2, {.value = KZ_PCI_SUBSYS_VENDOR});
  define(PCI_SUBSYSTEM_ID, 2, {.value = KZ_PCI_SUBSYS_ID});
  define(PCI_CAPABILITY_LIST, 1, {.value = cfg::pm});
  define(PCI_INTERRUPT_LINE, 1, {.rw = 0xff});
}

// 7.5.2. No D1, D2 or PME; No_Soft_Reset, so that D3hot keeps the state.
void ConfigModel::define_pm() {
  define(cfg::pm, 2, {.value = PCI_CAP_ID_PM | (next_pm << 8)});
  define(cfg::pm + PCI_PM_PMC, 2, {.value = 3});
  define(cfg::pm_control, 2, {.value = PCI_PM_CTRL_NO_SOFT_RESET, .rw = PCI_PM_CTRL_STATE_MASK});
}

// 7.7.2. Table and PBA in BAR2.
void ConfigModel::define_msix() {
  define(cfg::msi, 2, {.value = PCI_CAP_ID_MSIX | (next_msi << 8)});
  define(cfg::msi + PCI_MSIX_FLAGS, 2,
         {.value = options_.vectors - 1, .rw = PCI_MSIX_FLAGS_ENABLE | PCI_MSIX_FLAGS_MASKALL});
  define(cfg::msi + PCI_MSIX_TABLE, 4, {.value = KZ_MSIX_TABLE_OFFSET | KZ_BAR_MSIX});
  define(cfg::msi + PCI_MSIX_PBA, 4, {.value = KZ_MSIX_PBA_OFFSET | KZ_BAR_MSIX});
}

// 7.7.1: 64-bit address, per-vector masking.
void ConfigModel::define_msi() {
  unsigned order = std::bit_width(std::bit_ceil(options_.vectors)) - 1;
  uint32_t vectors = options_.vectors >= 32 ? UINT32_MAX : (1u << options_.vectors) - 1;
  define(cfg::msi, 2, {.value = PCI_CAP_ID_MSI | (next_msi << 8)});
  define(cfg::msi + PCI_MSI_FLAGS, 2,
         {.value = PCI_MSI_FLAGS_64BIT | PCI_MSI_FLAGS_MASKBIT | (order << 1),
          .rw = PCI_MSI_FLAGS_ENABLE | PCI_MSI_FLAGS_QSIZE});
  define(cfg::msi + PCI_MSI_ADDRESS_LO, 4, {.rw = 0xfffffffc});
  define(cfg::msi + PCI_MSI_ADDRESS_HI, 4, {.rw = 0xffffffff});
  define(cfg::msi + PCI_MSI_DATA_64, 2, {.rw = 0xffff});
  define(cfg::msi + PCI_MSI_MASK_64, 4, {.rw = vectors});
}

// 7.5.3: version 2, endpoint.
void ConfigModel::define_pcie() {
  const uint32_t c = cfg::pcie;
  define(c, 2, {.value = PCI_CAP_ID_EXP});
  define(c + PCI_EXP_FLAGS, 2, {.value = 2});
  define(
      c + PCI_EXP_DEVCAP, 4,
      {.value = 1 /* payload to 256 */ | PCI_EXP_DEVCAP_EXT_TAG | PCI_EXP_DEVCAP_RBER | PCI_EXP_DEVCAP_FLR});
  // Bit 15 (Initiate FLR) always reads 0. Max_Payload_Size survives FLR.
  define(c + PCI_EXP_DEVCTL, 2, {.value = 0x2810, .rw = 0x79ff, .flr_keeps = PCI_EXP_DEVCTL_PAYLOAD});
  define(c + PCI_EXP_DEVSTA, 2, {.w1c = 0x000f});
  define(c + PCI_EXP_LNKCAP, 4, {.value = gts32 | (lanes << 4) | (1u << 22) /* ASPM optionality */});
  define(c + PCI_EXP_LNKCTL, 2, {.rw = 0x00cb, .flr_keeps = 0x00cb});
  define(c + PCI_EXP_LNKSTA, 2, {.value = gts32 | (lanes << 4) | PCI_EXP_LNKSTA_SLC});
  define(c + PCI_EXP_DEVCAP2, 4,
         {.value = 0xf /* completion timeout ranges A..D */ | PCI_EXP_DEVCAP2_COMP_TMOUT_DIS});
  define(c + PCI_EXP_DEVCTL2, 2, {.rw = 0x001f});
  define(c + PCI_EXP_LNKCAP2, 4, {.value = speeds_to_32});
  define(c + PCI_EXP_LNKCTL2, 2, {.value = gts32, .rw = 0xffbf, .sticky = 0xffbf});
  define(c + PCI_EXP_LNKSTA2, 2, {.value = 0x001e /* equalization of 8 GT/s complete */});
}

// 7.8.4 and 7.9.3.
void ConfigModel::define_aer() {
  const uint32_t a = cfg::aer;
  define(a, 4, {.value = PCI_EXT_CAP_ID_ERR | (2u << 16) | (cfg::dsn << 20)});
  define(a + PCI_ERR_UNCOR_STATUS, 4, {.w1c = aer_uncorrectable, .sticky = aer_uncorrectable});
  define(a + PCI_ERR_UNCOR_MASK, 4,
         {.value = 0x00400000, .rw = aer_uncorrectable, .sticky = aer_uncorrectable});
  define(a + PCI_ERR_UNCOR_SEVER, 4,
         {.value = aer_severity, .rw = aer_uncorrectable, .sticky = aer_uncorrectable});
  define(a + PCI_ERR_COR_STATUS, 4, {.w1c = aer_correctable, .sticky = aer_correctable});
  define(a + PCI_ERR_COR_MASK, 4,
         {.value = aer_correctable_masked, .rw = aer_correctable, .sticky = aer_correctable});
  define(cfg::dsn, 4, {.value = PCI_EXT_CAP_ID_DSN | (1u << 16)});
  define(cfg::dsn + 4, 8, {.value = options_.serial});
}

}  // namespace kz::softtpu
