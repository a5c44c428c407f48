// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of this folder look at: a function's capabilities, what the kernel says of it, and findings
// of rules.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "shim/pci/rules.h"
#include "tests/harness/test.h"

namespace kz::test {

struct Subject {
  ConfigSpace* config = nullptr;
  CapabilityWalk walk;
  std::optional<PciInfo> info;  // where the kernel knows the function (Cap::sysfs)
  bool virtual_function = false;
  std::array<uint64_t, 6> bar_sizes{};  // bytes, 0 unknown
};

// Walks the chains. A kernel record is read where the device has Cap::sysfs.
Subject look_at(Device& device);
// Ends the test as blocked when the reader sees a part of the capability chains only (no root, short dump).
void need_whole_chain(const Subject& subject);
// The same for the standard chain alone.
void need_standard_chain(const Subject& subject);
// Evidence for each finding; a rule that is broken fails the test, an oddity makes it warn.
void judge_rules(const Findings& findings, std::string_view kind = ev::pci_rule);

}  // namespace kz::test
