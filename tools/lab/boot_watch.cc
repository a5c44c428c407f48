// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/boot_watch.h"

#include <fmt/format.h>

#include <chrono>

namespace kz::lab {
namespace {

// A sign of life comes every second; under TCG on a busy host late, but not so late.
constexpr double boot_limit_s = 120, silence_limit_s = 90, between_limit_s = 60;

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

BootWatch::BootWatch(Limit limit, const std::vector<std::string>& expected, Clock::time_point start)
    : limit_(std::move(limit)), overall_s_(boot_limit_s), start_(start), moved_(start), heard_(start) {
  for (auto& s : expected) overall_s_ += limit_(s) + between_limit_s;
}

std::string BootWatch::late(const std::vector<Step>& reached, const std::string& alive,
                            Clock::time_point now) {
  size_t moves = 0;
  for (auto& s : reached) moves += s.end < 0 ? 1 : 2;
  if (moves != moves_) moved_ = now;
  moves_ = moves;
  if (alive != alive_) heard_ = now;
  alive_ = alive;
  double still = seconds(moved_, now);
  if (reached.empty())
    return still > boot_limit_s ? fmt::format("no user space within {} s", boot_limit_s) : "";
  const Step& last = reached.back();
  if (seconds(heard_, now) > silence_limit_s)
    return fmt::format("the guest hangs: no sign of life for {} s", silence_limit_s);
  if (last.end < 0 && still > limit_(last.name))
    return fmt::format("{} had no end within {} s", last.name, limit_(last.name));
  if (last.end >= 0 && still > between_limit_s)
    return fmt::format("nothing came within {} s of the end of {}", between_limit_s, last.name);
  if (seconds(start_, now) > overall_s_) return fmt::format("the boot had no end within {} s", overall_s_);
  return {};
}

}  // namespace kz::lab
