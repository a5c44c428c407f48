// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/capabilities.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim/base/units.h"
#include "shim/dev/interrupts.h"
#include "shim/uapi/kz_regs.h"

namespace kz::dev {
namespace {

// The longest time that the kernel itself takes for a reset, beside the device: 100 ms after FLR, a second
// after a bus reset (PCI Express r6.0, 6.6.1), its locks, and the driver's dump before.
constexpr auto kernel_reset = std::chrono::milliseconds(2000);
// Below this not even the smallest test's buffers can be registered.
constexpr uint64_t least_memlock = 64 << 10;

constexpr const char* needs_admin = "this user may not: it needs CAP_SYS_ADMIN; run as root";

bool effective(unsigned capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return ::geteuid() == 0;
  return (data[capability / 32].effective >> (capability % 32) & 1) != 0;
}

Limits limits_of(const kz_info& info) {
  Limits l;
  l.hbm_bytes = info.hbm_bytes;
  l.hbm_page = info.hbm_page;
  l.hbm_geometry = info.hbm_geom;
  l.max_transfer = info.max_xfer;
  l.max_dim = info.max_dim;
  // The driver keeps the first queue pair for itself.
  l.queues = static_cast<uint16_t>(KZ_CAP_QUEUES(info.cap) > 0 ? KZ_CAP_QUEUES(info.cap) - 1 : 0);
  l.max_depth = 1u << info.max_order;
  l.vectors = static_cast<uint16_t>(info.vectors);
  l.iova_bits = KZ_CAP_IOVA_BITS(info.cap) != 0 ? KZ_CAP_IOVA_BITS(info.cap) : 64;
  l.ready_timeout = std::chrono::milliseconds(100) * KZ_CAP_READY_100MS(info.cap) + kernel_reset;
  for (size_t d = 0; d < l.numeric.size(); ++d) l.numeric[d] = info.numeric[d];
  l.hbm_cleared = (info.feat & KZ_FEAT_HBM_CLEARED) != 0 || (info.features & KZ_DF_CLEARS) != 0;
  return l;
}

class Filler {
 public:
  Filler(Capabilities& caps, bool sys_admin) : caps_(caps), sys_admin_(sys_admin) {}
  void have(std::initializer_list<Cap> caps) { caps_.have.insert(caps); }
  void missing(Cap cap, std::string why) { caps_.why_not[cap] = std::move(why); }
  // Where the device declares it.
  void declared(bool there, Cap cap, const char* bit) {
    if (there)
      caps_.have.insert(cap);
    else
      caps_.why_not[cap] = fmt::format("the device does not declare it: {} is 0", bit);
  }
  // Where the driver offers it, for who has CAP_SYS_ADMIN.
  void privileged(bool offered, Cap cap, const char* why_not) {
    if (!offered)
      caps_.why_not[cap] = why_not;
    else if (sys_admin_)
      caps_.have.insert(cap);
    else
      caps_.blocked[cap] = needs_admin;
  }
  void block(Cap cap, std::string why) {
    caps_.have.erase(cap);
    caps_.blocked[cap] = std::move(why);
  }

 private:
  Capabilities& caps_;
  bool sys_admin_;
};

}  // namespace

Rights rights_here(const std::string& kernel_name) {
  Rights r;
  r.sys_admin = effective(CAP_SYS_ADMIN);
  rlimit limit{};
  if (!effective(CAP_IPC_LOCK) && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    r.memlock = limit.rlim_cur;
  r.interrupts = !interrupt_counts_of(kernel_name).empty();
  return r;
}

Capabilities capabilities_of(const kz_info& info, const Rights& rights) {
  Capabilities caps;
  caps.limits = limits_of(info);
  Filler f(caps, rights.sys_admin);
  f.have({Cap::registers, Cap::telemetry, Cap::firmware_version, Cap::heartbeat, Cap::interrupts, Cap::queues,
          Cap::dma, Cap::abort, Cap::timestamp, Cap::fence, Cap::hbm_alloc, Cap::reset_queue});
  f.missing(Cap::raw_registers,
            "the driver shows identity, state and telemetry, and keeps the rest to itself");
  f.missing(Cap::raw_commands, "the driver checks and rewrites commands: none reaches the device as it is");
  f.missing(Cap::dma_sg, "the driver makes scatter lists itself and takes none from a user");
  f.missing(Cap::dma_at, "the driver chooses bus addresses");
  f.declared((info.feat & KZ_FEAT_CONTEXTS) != 0, Cap::contexts, "CONTEXTS");
  f.declared((info.feat & KZ_FEAT_MARCH) != 0, Cap::march, "MARCH");
  f.declared((info.feat & KZ_FEAT_CRC32C) != 0, Cap::crc32c, "CRC32C");
  f.declared((info.feat & KZ_FEAT_VECTOR) != 0, Cap::vector, "VECTOR");
  f.declared((info.feat & KZ_FEAT_ECC) != 0, Cap::ecc, "ECC");
  f.declared((info.dtypes & 1u << KZ_DT_S8) != 0, Cap::matmul_s8, "DTYPES.S8");
  f.declared((info.dtypes & 1u << KZ_DT_BF16) != 0, Cap::matmul_bf16, "DTYPES.BF16");
  f.declared((info.dtypes & 1u << KZ_DT_F16) != 0, Cap::matmul_f16, "DTYPES.F16");
  f.declared((info.dtypes & 1u << KZ_DT_F32) != 0, Cap::matmul_f32, "DTYPES.F32");
  f.privileged(true, Cap::hbm_physical, "");
  f.privileged(true, Cap::watchdog, "");
  f.privileged((info.features & KZ_DF_MMAP) != 0, Cap::aperture, "the device has no HBM aperture");
  f.privileged((info.features & KZ_DF_ECC_INJECT) != 0, Cap::ecc_inject, "the device injects no ECC errors");
  f.privileged((info.features & KZ_DF_FW_UPDATE) != 0, Cap::fw_update, "the device takes no firmware");
  f.privileged((info.features & KZ_DF_RESET_FUNCTION) != 0, Cap::reset_function, "the driver offers no FLR");
  f.privileged((info.features & KZ_DF_RESET_DEVICE) != 0, Cap::reset_device,
               "the device is on the root bus: there is no bus reset");
  f.privileged((info.features & KZ_DF_RESET_FIRMWARE) != 0, Cap::reset_firmware,
               "the driver offers no firmware reset");
  if (rights.memlock && *rights.memlock < least_memlock)
    f.block(Cap::dma,
            fmt::format("this user may pin {} only; raise ulimit -l", to_string(Bytes{*rights.memlock})));
  if (!rights.interrupts)
    f.block(Cap::interrupts, "the device's vectors cannot be counted: /proc/interrupts does not show them");
  return caps;
}

std::string serial_text(uint64_t serial) {
  if (serial == 0 || serial == ~uint64_t{0}) return {};
  std::string text;
  for (int byte = 7; byte >= 0; --byte)
    text += fmt::format("{:02x}{}", serial >> (8 * byte) & 0xff, byte > 0 ? "-" : "");
  return text;
}

}  // namespace kz::dev
