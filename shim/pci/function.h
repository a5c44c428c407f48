// SPDX-License-Identifier: GPL-2.0-or-later
// What the kernel alone says of a PCI function, whoever drives it: identity, and what a user may do with it.
#pragma once

#include <string>

#include "shim/device.h"
#include "shim/pci/config_live.h"
#include "shim/pci/sysfs.h"

namespace kz {

Identity identify_function(const std::string& uri, const PciInfo& info, ConfigSpace& config);

// Empty where this user may write the function's configuration space, else why not.
std::string why_config_is_read_only(const Bdf& bdf, const HostRoots& roots = {});

// config_read, config_extended, config_write, sysfs and node: had, missing or blocked.
Capabilities function_capabilities(const LiveConfig& config, const PciInfo& info);

// What the header says; no names.
Identity identify_header(const std::string& uri, const Bdf& bdf, ConfigSpace& config);
// Ids and names from pci.ids: "1234:4b5a reference TPU".
void set_name(Identity& id);

}  // namespace kz
