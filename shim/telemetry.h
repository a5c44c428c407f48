// SPDX-License-Identifier: GPL-2.0-or-later
// One sample of what a device says of itself. A field that the device does not have is empty, never zero.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kz {

struct Telemetry {
  std::optional<double> core_celsius, hbm_celsius, limit_celsius, critical_celsius;
  std::optional<double> power_watts, power_cap_watts;
  std::optional<double> clock_mhz, clock_max_mhz;
  std::optional<uint32_t> fan_rpm;
  std::optional<uint32_t> throttle;  // KZ_THROTTLE_*
  std::optional<uint32_t> throttle_ms;
  std::optional<uint32_t> heartbeat;
  std::optional<uint32_t> firmware_version;  // KZ_FW_VERSION
  std::optional<uint32_t> reset_count, reset_reason;
  std::optional<uint64_t> hbm_bytes, hbm_free;
  std::optional<uint32_t> contexts, pages_retired, pages_retire_max;
  std::optional<uint64_t> device_ns, commands, dma_bytes;
  std::vector<uint32_t> ecc_ce, ecc_ue;  // per channel
  bool all_ones = false;                 // the block read as all ones: nothing in it is a measurement
  std::string raw_hex;                   // the block as read, evidence
};

// A version as people write it, "1.4.2". The fields are those of KZ_FW_VERSION.
inline std::string firmware_text(uint32_t version) {
  return fmt::format("{}.{}.{}", version >> 24, version >> 16 & 0xff, version & 0xffff);
}

}  // namespace kz
