// SPDX-License-Identifier: GPL-2.0-or-later
// What the device and this process looked like around a test, and what may be said of the difference.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/device.h"
#include "shim/pci/sysfs.h"

namespace kz::test {

// Unmasked bits of the AER status registers, PCIe r6.0, 7.8.4.
struct AerBits {
  uint32_t correctable = 0, nonfatal = 0, fatal = 0;
};

struct Snapshot {
  Telemetry telemetry;
  std::vector<uint64_t> interrupts;  // per vector; empty where they cannot be counted
  uint64_t fds = 0;                  // open descriptors of this process
  uint64_t locked_kib = 0;           // VmLck
  uint64_t pinned_kib = 0;           // VmPin
  uint64_t resident_kib = 0;         // VmRSS
  uint32_t class_code = 0;
  std::optional<PciLink> link;  // as negotiated; nothing where the function has none or it cannot be read
  std::optional<AerBits> aer_bits;
  AerTotals aer_totals;  // what the kernel counted since boot
};

// A field of /proc/self/status in KiB, 0 where it is missing.
uint64_t process_kib(std::string_view field);
uint64_t open_fds();

Snapshot take_snapshot(Device& device);
nlohmann::json to_json(const Telemetry& telemetry);
nlohmann::json to_json(const Snapshot& snapshot);

struct Finding {
  bool fails;  // else warns
  std::string text;
  std::string kind;  // of evidence
  nlohmann::json detail;
};

// Changes that the test announced.
struct Expected {
  bool reset = false;
  bool ecc = false;
  bool hbm = false;
};

// Judges what changed between the two. Conditions that held before the test already are not held against it,
// except a telemetry block that reads as all ones.
std::vector<Finding> judge_difference(const Snapshot& before, const Snapshot& after, const Limits& limits,
                                      const Expected& expected, const std::string& test);

}  // namespace kz::test
