// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/health.h"

#include <fmt/format.h>

#include <algorithm>

namespace kz {
namespace {

// Functions that work without a driver of their own: bridges, memory and system peripherals, instrumentation.
bool needs_driver(uint32_t class_code) {
  switch (class_code >> 16) {
    case 0x05:
    case 0x06:
    case 0x08:
    case 0x0b:
    case 0x11:
    case 0x13:
      return class_code >> 8 == 0x0b40;
    default:
      return true;
  }
}

}  // namespace

std::string_view to_string(HealthState state) {
  switch (state) {
    case HealthState::ok:
      return "ok";
    case HealthState::no_driver:
      return "no driver";
    case HealthState::degraded_link:
      return "degraded link";
    case HealthState::aer_errors:
      return "AER errors";
    case HealthState::not_responding:
      return "not responding";
  }
  return "ok";
}

std::optional<LinkShortfall> judge_link(const PciLink& now, const PciLink& device_max,
                                        const std::optional<PciLink>& upstream_max, uint32_t class_code) {
  LinkShortfall s;
  s.now = now;
  s.possible = device_max;
  if (upstream_max)
    s.possible = {std::min(device_max.gts, upstream_max->gts),
                  std::min(device_max.width, upstream_max->width)};
  s.narrow = now.width < s.possible.width;
  s.slow = now.gts < s.possible.gts && (s.narrow || class_code >> 16 != 0x03);
  if (!s.narrow && !s.slow) return std::nullopt;
  s.text = fmt::format("link runs at {}, both ends can do {}", to_string(now), to_string(s.possible));
  if (!upstream_max)
    s.text = fmt::format("link runs at {}, the device can do {}", to_string(now), to_string(s.possible));
  return s;
}

PciHealth judge_health(const PciInfo& info) {
  PciHealth health;
  auto add = [&](HealthState state, std::string reason) {
    health.problems.push_back({state, std::move(reason)});
  };
  if (!info.responds) {
    // Nothing else that it says means anything.
    add(HealthState::not_responding, "configuration space reads as all ones or cannot be read");
    return health;
  }
  if (info.aer.dirty())
    add(HealthState::aer_errors,
        fmt::format("since boot {} correctable, {} non-fatal, {} fatal", info.aer.correctable.value_or(0),
                    info.aer.nonfatal.value_or(0), info.aer.fatal.value_or(0)));
  if (info.link_now && info.link_max)
    if (auto shortfall = judge_link(*info.link_now, *info.link_max, info.upstream_link_max, info.class_code))
      add(HealthState::degraded_link, shortfall->text);
  if (info.driver.empty() && needs_driver(info.class_code))
    add(HealthState::no_driver, "no kernel driver is bound");
  return health;
}

}  // namespace kz
