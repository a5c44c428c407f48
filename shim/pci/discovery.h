// SPDX-License-Identifier: GPL-2.0-or-later
// Which PCI functions there are, and which of them are accelerators.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/pci/sysfs.h"

namespace kz {

struct FoundFunction {
  PciInfo info;
  std::string vendor_name, device_name, class_name;  // from pci.ids, empty where it has none
  std::optional<std::string> accelerator;  // why it counts as one: "class 12, processing accelerator"
};

// All functions, in order of address. One that vanishes meanwhile is left out.
std::vector<FoundFunction> discover_pci(const HostRoots& roots = {});

// By class (12: processing accelerator, 0302: 3D controller, 0b40: co-processor), driver, node or known id.
std::optional<std::string> accelerator_reason(const PciInfo& info);

// What a user may name a function by: "01:00.0", "0000:01:00.0" or "1234:4b5a". Throws Error(usage).
struct PciSelector {
  std::optional<Bdf> bdf;
  uint16_t vendor = 0, device = 0;  // when there is no bdf
  bool matches(const PciInfo& info) const;
};
PciSelector parse_selector(std::string_view text);

// For an Error(not_found): up to three functions whose address is nearest to `bdf`, "0000:00:01.0 1af4:1045,
// ...".
std::string nearest_functions(const Bdf& bdf, const HostRoots& roots = {});

}  // namespace kz
