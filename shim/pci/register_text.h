// SPDX-License-Identifier: GPL-2.0-or-later
// How a field's number reads for a person.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace kz {

template <int Digits>
std::string text_hex(uint64_t value) {
  return fmt::format("{:#0{}x}", value, Digits + 2);
}
// A field that holds the upper bits of an address: `Low` bits below are 0.
template <int Low>
std::string text_high_bits(uint64_t value) {
  return fmt::format("{:#x}", value << Low);
}
inline std::string text_plus_one(uint64_t value) { return fmt::format("{}", value + 1); }
inline std::string text_dwords(uint64_t value) { return fmt::format("{} bytes", value * 4); }
inline std::string text_width(uint64_t value) { return fmt::format("x{}", value); }
// A Supported Link Speeds Vector: bit 0 is 2.5 GT/s (7.5.3.18).
std::string text_speeds(uint64_t vector);
// Resizable BAR: bit 0 is 1 MB (7.8.6.2).
std::string text_bar_sizes(uint64_t vector);
// The same as an exponent: 0 is 1 MB (7.8.6.3).
std::string text_bar_size(uint64_t exponent);
// Latency Tolerance Reporting and L1 PM Substates: three bits of scale above ten of value (7.8.2.2).
std::string text_latency(uint64_t value);

}  // namespace kz
