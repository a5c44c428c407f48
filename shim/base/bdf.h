// SPDX-License-Identifier: GPL-2.0-or-later
// PCI address: domain, bus, device, function (PCI Express Base r6.0, section 2.2.4.2 routing by ID).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace kz {

struct Bdf {
  uint32_t domain = 0;  // up to 32 bits: VMD uses values above 0xffff
  uint8_t bus = 0;
  uint8_t device = 0;    // 0..31
  uint8_t function = 0;  // 0..7
  auto operator<=>(const Bdf&) const = default;
};

// "0000:01:00.0" or "01:00.0" (domain 0). Throws Error(usage) with what is wrong.
Bdf parse_bdf(std::string_view text);
std::string to_string(const Bdf& bdf);  // always with domain

}  // namespace kz
