// SPDX-License-Identifier: GPL-2.0-or-later
// What a device, its backend and this host can do. A test names what it needs; nothing else may differ between backends.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "shim/base/units.h"

namespace kz {

enum class Cap {
  config_read, config_write, config_extended,  // config space; 4 KiB of it
  sysfs,                                       // the kernel knows the device: sysfs attributes can be compared
  node,                                        // a device node with owner and mode
  registers,                                   // identity, state, telemetry and scratch by offset (reference TPU)
  raw_registers,                               // every offset, those of queues and unlisted ones included
  telemetry, firmware_version, heartbeat,
  interrupts,                                  // completions arrive by interrupt, vectors can be counted
  queues, contexts, dma, dma_sg, raw_commands, abort, timestamp, fence,
  dma_at,                                      // host memory at a bus address of one's own choice
  hbm_alloc, hbm_physical, aperture,           // allocation; physical addresses (root context); mapped HBM
  crc32c, march, vector,
  matmul_s8, matmul_bf16, matmul_f16, matmul_f32,
  ecc, ecc_inject, fw_update, watchdog,
  reset_queue, reset_function, reset_device, reset_firmware,
};
std::string_view to_string(Cap cap);
std::optional<Cap> parse_cap(std::string_view name);

struct Limits {
  uint64_t hbm_bytes = 0;
  uint64_t hbm_page = 0;            // allocation unit
  std::optional<uint32_t> hbm_geometry;  // KZ_GEOM(), where the physical map is known
  uint64_t max_transfer = 0;        // bytes, one command
  uint32_t max_dim = 0;             // matmul
  uint16_t queues = 0;              // queue pairs that a user can open (drivers keep some)
  uint32_t max_depth = 0;           // entries of the largest ring
  uint16_t vectors = 0;
  unsigned iova_bits = 64;
  std::chrono::milliseconds ready_timeout{0};  // worst time to ready after a reset
  std::array<uint32_t, 4> numeric{};  // KZ_NUM_* contract per Dtype
  bool hbm_cleared = false;         // a new owner and a reset find zeroes
};

struct Capabilities {
  std::set<Cap> have;
  std::map<Cap, std::string> why_not;  // the reason, where the backend knows one
  // Blocked, not missing: the device has it but this host or user cannot use it (permission, lockdown, tool).
  std::map<Cap, std::string> blocked;
  Limits limits;

  bool has(Cap c) const { return have.contains(c); }
};

}  // namespace kz
