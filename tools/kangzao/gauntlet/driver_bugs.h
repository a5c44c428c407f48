// SPDX-License-Identifier: GPL-2.0-or-later
// The planted bugs of the reference driver, read from shim/kmod/bugs.txt: what can be planted in a lab guest.
// Nothing that judges sees any of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kz::gauntlet {

struct DriverBug {
  std::string id, cls;           // "K07", "driver_bug"
  bool needs_debug = false;      // only a debug kernel shows it for sure
  uint64_t first = 0, last = 0;  // range of bug_arg; last 0: it has none
  uint64_t fallback = 0;
  std::string title;
};

// The rows of the table, in its order. Throws Error(usage) with the line for one that cannot be read.
std::vector<DriverBug> parse_driver_bugs(const std::string& text);

// Those that fit one of the globs; all for an empty list. Throws Error(usage) for a glob that fits none.
std::vector<DriverBug> select_driver_bugs(const std::vector<DriverBug>& all,
                                          const std::vector<std::string>& globs);

// bug_arg: the table's own, or drawn from the range; the same seed gives the same, whatever the selection.
uint64_t bug_argument(const DriverBug& bug, std::optional<uint64_t> vary);

// Words for the make of the driver: one bug at work, in nothing that a loader of the module can see.
std::vector<std::string> make_words(const DriverBug& bug, uint64_t argument);

}  // namespace kz::gauntlet
