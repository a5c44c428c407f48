// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "shim/tpu/device.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::tpu {

Telemetry decode_telemetry(std::span<const std::byte> block) {
  Telemetry t;
  for (std::byte b : block) t.raw_hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  t.all_ones = std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0xff}; });
  kz_telemetry k;
  if (t.all_ones || block.size() < sizeof k) return t;
  std::memcpy(&k, block.data(), sizeof k);
  auto celsius = [](int32_t milli) { return milli / 1000.0; };
  t.core_celsius = celsius(k.temp_core_mc);
  t.hbm_celsius = celsius(k.temp_hbm_mc);
  t.limit_celsius = celsius(k.temp_limit_mc);
  t.critical_celsius = celsius(k.temp_critical_mc);
  t.power_watts = k.power_mw / 1000.0;
  t.power_cap_watts = k.power_cap_mw / 1000.0;
  t.clock_mhz = k.clock_khz / 1000.0;
  t.clock_max_mhz = k.clock_max_khz / 1000.0;
  if (k.fan_present != 0) t.fan_rpm = k.fan_rpm;
  t.throttle = k.throttle;
  t.throttle_ms = k.throttle_ms;
  t.heartbeat = k.heartbeat;
  t.firmware_version = k.fw_version;
  t.reset_count = k.reset_count;
  t.reset_reason = k.reset_reason;
  t.hbm_bytes = k.hbm_bytes;
  t.hbm_free = k.hbm_free_bytes;
  t.contexts = k.contexts;
  t.pages_retired = k.pages_retired;
  t.pages_retire_max = k.pages_retire_max;
  t.device_ns = k.time_ns;
  t.commands = k.commands;
  t.dma_bytes = k.dma_bytes;
  uint32_t channels = std::min<uint32_t>(k.ecc_channels, KZ_TEL_CHANNELS);
  t.ecc_ce.assign(k.ecc_ce, k.ecc_ce + channels);
  t.ecc_ue.assign(k.ecc_ue, k.ecc_ue + channels);
  return t;
}

}  // namespace kz::tpu
