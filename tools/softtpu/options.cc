// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/options.h"

#include <array>
#include <charconv>
#include <string_view>

#include "shim/base/error.h"
#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_regs.h"

namespace kz::softtpu {

namespace {

[[noreturn]] void refuse_option(const std::string& what, const std::string& text, const std::string& want) {
  throw Error({Errc::usage, "read " + what, text, "wants " + want, {}});
}

// Exactly N unsigned numbers with `separator` between them, each at most `limits[i]`.
template <size_t N>
bool split(std::string_view text, char separator, const std::array<uint32_t, N>& limits,
           std::array<uint32_t, N>& out) {
  const char *p = text.data(), *end = p + text.size();
  for (size_t i = 0; i < N; ++i) {
    auto [next, ec] = std::from_chars(p, end, out[i]);
    if (ec != std::errc() || out[i] > limits[i]) return false;
    p = next;
    if (i + 1 < N && (p == end || *p++ != separator)) return false;
  }
  return p == end;
}

}  // namespace

std::chrono::nanoseconds parse_duration(const std::string& text) {
  const std::string want = "a time such as 100us, 5ms or 1s, up to 3600s";
  double value = 0;
  auto [rest, ec] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  double scale = unit == "ns" ? 1 : unit == "us" ? 1e3 : unit == "ms" ? 1e6 : unit == "s" ? 1e9 : 0;
  if (ec != std::errc() || scale == 0 || !(value >= 0) || value * scale > 3600e9)
    refuse_option("time", text, want);
  return std::chrono::nanoseconds(static_cast<int64_t>(value * scale + 0.5));
}

uint32_t parse_geometry(const std::string& text) {
  std::array<uint32_t, 4> w{};
  // In a URI the comma parts options, so that there it is 3x1x4x5.
  if (!split<4>(text, ',', {5, 4, 8, 10}, w) && !split<4>(text, 'x', {5, 4, 8, 10}, w))
    refuse_option("geometry", text,
                  "four widths in bits such as 3x1x4x5 (channel, pseudo channel, bank, column)");
  return KZ_GEOM(w[0], w[1], w[2], w[3]);
}

uint32_t parse_version(const std::string& text) {
  std::array<uint32_t, 3> v{};
  if (!split<3>(text, '.', {255, 255, 65535}, v))
    refuse_option("version", text, "major.minor.patch such as 1.4.2");
  return KZ_FW_VERSION(v[0], v[1], v[2]);
}

uint64_t parse_number(const std::string& text) {
  uint64_t value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size())
    refuse_option("number", text, "a whole number, 0 or more");
  return value;
}

uint64_t parse_hex(const std::string& text) {
  std::string_view digits = text;
  if (digits.starts_with("0x")) digits.remove_prefix(2);
  uint64_t value = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (ec != std::errc() || end != digits.data() + digits.size())
    refuse_option("serial", text, "up to 16 hex digits");
  return value;
}

}  // namespace kz::softtpu
