// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "shim/base/error.h"

namespace kz {

Bytes parse_bytes(std::string_view text) {
  auto bad = [&](std::string why) -> Error {
    return Error({Errc::usage, "read size", fmt::format("'{}'", text), std::move(why),
                  "write a number with an optional K, M, G or T, such as 64M", 0});
  };
  int base = 10;
  std::string_view digits = text;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    base = 16;
    digits.remove_prefix(2);
  }
  uint64_t n = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), n, base);
  if (ec != std::errc() || end == digits.data()) throw bad("not a number");
  std::string_view unit(end, static_cast<size_t>(digits.data() + digits.size() - end));
  int shift = 0;
  if (!unit.empty() && unit != "B") {
    auto at = std::string_view("KMGT").find(static_cast<char>(unit[0] & ~0x20));
    std::string_view rest = unit.substr(1);
    if (at == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB")) throw bad("unknown unit");
    shift = 10 * (static_cast<int>(at) + 1);
  }
  if (shift != 0 && n > (std::numeric_limits<uint64_t>::max() >> shift)) throw bad("beyond 64 bits");
  return {n << shift};
}

std::string to_string(Bytes size) {
  constexpr std::string_view names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  uint64_t n = size.value;
  size_t unit = 0;
  while (unit + 1 < std::size(names) && n >= 1024 && n % 1024 == 0) {
    n /= 1024;
    ++unit;
  }
  if (unit == 0 && n >= 10 * 1024) {
    double d = static_cast<double>(n);
    while (d >= 1024 && unit + 1 < std::size(names)) {
      d /= 1024;
      ++unit;
    }
    return fmt::format("{:.1f} {}", d, names[unit]);
  }
  return fmt::format("{} {}", n, names[unit]);
}

std::string to_string(std::chrono::nanoseconds t) {
  double ns = static_cast<double>(t.count());
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.3g} us", ns / 1e3);
  if (ns < 1e9) return fmt::format("{:.3g} ms", ns / 1e6);
  return fmt::format("{:.3g} s", ns / 1e9);
}

}  // namespace kz
