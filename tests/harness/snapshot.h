// SPDX-License-Identifier: GPL-2.0-or-later
// What the device and this process looked like around a test, and what may be said of the difference.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shim/device.h"

namespace kz::test {

struct Snapshot {
  Telemetry telemetry;
  std::vector<uint64_t> interrupts;  // per vector; empty where they cannot be counted
  uint64_t fds = 0;                  // open descriptors of this process
  uint64_t locked_kib = 0;           // VmLck
  uint64_t resident_kib = 0;         // VmRSS
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
