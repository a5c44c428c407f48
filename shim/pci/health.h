// SPDX-License-Identifier: GPL-2.0-or-later
// Whether a function looks well, from what the kernel says of it alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/pci/sysfs.h"

namespace kz {

enum class HealthState { ok, no_driver, degraded_link, aer_errors, not_responding };  // gravest last
std::string_view to_string(HealthState state);

struct HealthProblem {
  HealthState state = HealthState::ok;
  std::string reason;
};

struct PciHealth {
  std::vector<HealthProblem> problems;  // gravest first
  HealthState state() const { return problems.empty() ? HealthState::ok : problems.front().state; }
};

// A link that runs below what both ends can do. `narrow` means lanes are missing, which no power saving does;
// a lower speed alone is normal for an idle display controller and then not reported.
struct LinkShortfall {
  bool narrow = false, slow = false;
  PciLink now, possible;
  std::string text;
};
std::optional<LinkShortfall> judge_link(const PciLink& now, const PciLink& device_max,
                                        const std::optional<PciLink>& upstream_max, uint32_t class_code);

PciHealth judge_health(const PciInfo& info);

}  // namespace kz
