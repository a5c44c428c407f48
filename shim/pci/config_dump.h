// SPDX-License-Identifier: GPL-2.0-or-later
// Text dumps of configuration space as lspci -x, -xxx or -xxxx prints them, with or without -v, -nn and -D.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shim/base/bdf.h"

namespace kz {

struct DumpedFunction {
  Bdf bdf;
  std::string title;           // the rest of the device's first line
  std::string driver;          // from "Kernel driver in use:", else empty
  unsigned line = 0;           // of the title, from 1
  std::vector<uint8_t> bytes;  // 64 to 4096, from offset 0, without gaps
};

// `name` is the file's, for errors. Rows of one function must start at 0 and follow one another; text between
// them is passed over, but must be text. Throws Error(bad_data) naming file and line: control characters, a
// malformed row, a gap, fewer than 64 or more than 4096 bytes, an address given twice, no function with bytes
// at all.
std::vector<DumpedFunction> parse_pci_dump(std::string_view text, const std::string& name);

// Reads at most 64 MiB. Throws Error(not_found), Error(permission), Error(io), and as above.
std::vector<DumpedFunction> read_pci_dump(const std::string& path);

}  // namespace kz
