// SPDX-License-Identifier: GPL-2.0-or-later
// What the driver says of device and driver, and what this user may do with it, as capabilities. Pure.
#pragma once

#include <optional>

#include "shim/capability.h"
#include "shim/uapi/kz_ioctl.h"

namespace kz::dev {

struct Rights {
  bool sys_admin = false;  // CAP_SYS_ADMIN: context 0, resets, injection, firmware, registers to be written
  std::optional<uint64_t> memlock;  // bytes that this user may pin; nothing: no limit
  bool interrupts = true;           // /proc/interrupts shows the device's vectors
};

// Of this process on this host. `kernel_name`: "kz0".
Rights rights_here(const std::string& kernel_name);

// Everything but what belongs to the PCI function (config space, sysfs, node).
Capabilities capabilities_of(const kz_info& info, const Rights& rights);

// "xx-xx-xx-xx-xx-xx-xx-xx" of kz_info.serial as the rest of the suite writes it; empty for 0.
std::string serial_text(uint64_t serial);

}  // namespace kz::dev
