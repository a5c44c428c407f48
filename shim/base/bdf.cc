// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/bdf.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "shim/base/error.h"

namespace kz {

static bool hex(std::string_view s, size_t min_digits, size_t max_digits, uint64_t limit, uint32_t& out) {
  if (s.size() < min_digits || s.size() > max_digits) return false;
  auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), out, 16);
  return ec == std::errc() && end == s.data() + s.size() && out <= limit;
}

Bdf parse_bdf(std::string_view text) {
  auto dot = text.rfind('.');
  auto colon = text.rfind(':', dot);
  uint32_t domain = 0, bus = 0, dev = 0, fn = 0;
  bool ok = dot != std::string_view::npos && colon != std::string_view::npos;
  if (ok) {
    std::string_view head = text.substr(0, colon);
    if (auto c = head.rfind(':'); c != std::string_view::npos) {
      ok = hex(head.substr(0, c), 4, 8, 0xffffffff, domain);
      head = head.substr(c + 1);
    }
    ok = ok && hex(head, 2, 2, 0xff, bus) && hex(text.substr(colon + 1, dot - colon - 1), 2, 2, 0x1f, dev) &&
         hex(text.substr(dot + 1), 1, 1, 7, fn);
  }
  if (!ok)
    throw Error({Errc::usage, "read PCI address", "'" + std::string(text) + "'", "not domain:bus:device.function",
                 "write it as lspci -D prints it, such as 0000:01:00.0", 0});
  return {domain, static_cast<uint8_t>(bus), static_cast<uint8_t>(dev), static_cast<uint8_t>(fn)};
}

std::string to_string(const Bdf& b) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", b.domain, b.bus, b.device, b.function);
}

}  // namespace kz
