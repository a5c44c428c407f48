// SPDX-License-Identifier: GPL-2.0-or-later
// The device's registers as capabilities, with the reason for each that is missing.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/tpu/device.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

uint64_t read64(Transport& t, uint32_t lo) {
  uint64_t low = t.read32(lo);
  return low | static_cast<uint64_t>(t.read32(lo + 4)) << 32;
}

Limits read_limits(Transport& t, uint32_t cap, uint32_t feat) {
  Limits l;
  l.hbm_bytes = read64(t, KZ_REG_HBM_SIZE_LO);
  l.hbm_page = t.read32(KZ_REG_HBM_PAGE);
  l.hbm_geometry = t.read32(KZ_REG_HBM_GEOM);
  l.max_transfer = read64(t, KZ_REG_MAX_XFER_LO);
  l.max_dim = t.read32(KZ_REG_MAX_DIM);
  // The driver keeps the last queue pair for itself.
  l.queues = static_cast<uint16_t>(KZ_CAP_QUEUES(cap) > 0 ? KZ_CAP_QUEUES(cap) - 1 : 0);
  l.max_depth = 1u << KZ_CAP_MAX_ORDER(cap);
  l.vectors = static_cast<uint16_t>(t.vectors());
  l.iova_bits = KZ_CAP_IOVA_BITS(cap) != 0 ? KZ_CAP_IOVA_BITS(cap) : 64;
  l.ready_timeout = std::chrono::milliseconds(100) * KZ_CAP_READY_100MS(cap);
  l.hbm_cleared = (feat & KZ_FEAT_HBM_CLEARED) != 0;
  for (uint32_t d = 0; d < l.numeric.size(); ++d) l.numeric[d] = t.read32(KZ_REG_NUMERIC(d));
  return l;
}

class Builder {
 public:
  explicit Builder(Capabilities& caps) : caps_(caps) {}
  void from(uint32_t value, uint32_t bit, Cap cap, uint32_t reg, const char* name) {
    if ((value & bit) != 0)
      caps_.have.insert(cap);
    else
      caps_.why_not[cap] =
          fmt::format("the device does not declare it: {} in {} is 0", name, register_name(reg));
  }
  void always(std::initializer_list<Cap> caps) { caps_.have.insert(caps); }
  void when(bool there, Cap cap, const char* why_not) {
    if (there)
      caps_.have.insert(cap);
    else
      caps_.why_not[cap] = why_not;
  }

 private:
  Capabilities& caps_;
};

bool has_flr(ConfigSpace& config) {
  for (const PciCapability& cap : walk_capabilities(config).found)
    if (!cap.extended && cap.id == PCI_CAP_ID_EXP)
      return (config.read32(cap.offset + PCI_EXP_DEVCAP) & PCI_EXP_DEVCAP_FLR) != 0;
  return false;
}

}  // namespace

Capabilities read_capabilities(Transport& t) {
  Capabilities caps;
  uint32_t cap = t.read32(KZ_REG_CAP), feat = t.read32(KZ_REG_FEAT), types = t.read32(KZ_REG_DTYPES);
  caps.limits = read_limits(t, cap, feat);
  Builder b(caps);
  b.always({Cap::config_read,   Cap::config_write, Cap::registers, Cap::telemetry,   Cap::firmware_version,
            Cap::heartbeat,     Cap::interrupts,   Cap::queues,    Cap::dma,         Cap::dma_sg,
            Cap::raw_commands,  Cap::abort,        Cap::timestamp, Cap::fence,       Cap::hbm_alloc,
            Cap::hbm_physical,  Cap::aperture,     Cap::watchdog,  Cap::reset_queue, Cap::reset_device,
            Cap::reset_firmware, Cap::raw_registers, Cap::dma_at});
  b.when(t.config().size() == 4096, Cap::config_extended,
         "the way to the device gives 256 bytes of config space");
  b.when(has_flr(t.config()), Cap::reset_function, "Device Capabilities says that there is no FLR");
  b.from(feat, KZ_FEAT_CONTEXTS, Cap::contexts, KZ_REG_FEAT, "CONTEXTS");
  b.from(feat, KZ_FEAT_MARCH, Cap::march, KZ_REG_FEAT, "MARCH");
  b.from(feat, KZ_FEAT_CRC32C, Cap::crc32c, KZ_REG_FEAT, "CRC32C");
  b.from(feat, KZ_FEAT_VECTOR, Cap::vector, KZ_REG_FEAT, "VECTOR");
  b.from(feat, KZ_FEAT_FW_UPDATE, Cap::fw_update, KZ_REG_FEAT, "FW_UPDATE");
  b.from(feat, KZ_FEAT_ECC, Cap::ecc, KZ_REG_FEAT, "ECC");
  b.from(feat, KZ_FEAT_ECC_INJECT, Cap::ecc_inject, KZ_REG_FEAT, "ECC_INJECT");
  b.from(types, 1u << KZ_DT_S8, Cap::matmul_s8, KZ_REG_DTYPES, "S8");
  b.from(types, 1u << KZ_DT_BF16, Cap::matmul_bf16, KZ_REG_DTYPES, "BF16");
  b.from(types, 1u << KZ_DT_F16, Cap::matmul_f16, KZ_REG_DTYPES, "F16");
  b.from(types, 1u << KZ_DT_F32, Cap::matmul_f32, KZ_REG_DTYPES, "F32");
  const char* no_kernel = "the device is reached from user space, past the kernel's drivers";
  b.when(false, Cap::sysfs, no_kernel);
  b.when(false, Cap::node, no_kernel);
  return caps;
}

}  // namespace kz::tpu
