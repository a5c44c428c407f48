// SPDX-License-Identifier: GPL-2.0-or-later
// A device is named by a URI: scheme ":" rest. The schemes stand in README.md.
#pragma once

#include <initializer_list>
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

// Throws Error(usage) for an option that is none of `known`.
void only_options(const Uri& uri, std::initializer_list<std::string_view> known);

}  // namespace kz
