// SPDX-License-Identifier: GPL-2.0-or-later
// A device is named by a URI: scheme ":" rest. The schemes stand in README.md.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kz {

struct Uri {
  std::string scheme;                          // "softtpu", "vfio-user", "pci", ...
  std::string path;                            // socket path, BDF, node or adapter name; empty for softtpu
  std::map<std::string, std::string> options;  // "softtpu:hbm=64M,irq=msi"
  std::string text;                            // as given
};

// Throws Error(usage) naming the known schemes and the nearest one.
Uri parse_uri(std::string_view text);

}  // namespace kz
