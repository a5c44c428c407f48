// SPDX-License-Identifier: GPL-2.0-or-later
// Words of the command line that need parsing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kz::softtpu {

// "100us", "5ms", "1s", "250ns"; digits with at most one decimal point. Throws Error(usage). At most one
// hour.
std::chrono::nanoseconds parse_duration(const std::string& text);
// "3,1,4,5" (channel, pseudo channel, bank, column: widths in bits) -> KZ_GEOM. Throws Error(usage).
uint32_t parse_geometry(const std::string& text);
// "1.4.2" -> KZ_FW_VERSION. Throws Error(usage).
uint32_t parse_version(const std::string& text);
// "7" -> 7, decimal, up to 2^64 - 1. Throws Error(usage).
uint64_t parse_number(const std::string& text);
// "4b5a000000000001", with or without 0x. Throws Error(usage).
uint64_t parse_hex(const std::string& text);

}  // namespace kz::softtpu
