// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/host_load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace kz {

namespace {

constexpr auto copy_is_old = std::chrono::seconds(3);

Fd open_copy() {
  const char* name = std::getenv("KANGZAO_HOST_PRESSURE");
  return Fd(name != nullptr ? ::open(name, O_RDONLY | O_CLOEXEC) : -1);
}

// some avg10=0.00 avg60=0.00 avg300=0.00 total=15974917266
std::chrono::microseconds total_in(const Fd& file) {
  char text[256];
  const ssize_t n = file ? ::pread(file.get(), text, sizeof text - 1, 0) : 0;
  if (n <= 0) return {};
  text[n] = '\0';
  const char* found = std::strstr(text, "total=");
  return std::chrono::microseconds(found ? std::strtoll(found + 6, nullptr, 10) : 0);
}

}  // namespace

HostLoad::HostLoad()
    : file_(::open("/proc/pressure/cpu", O_RDONLY | O_CLOEXEC)),
      copy_(open_copy()),
      last_(total_in(file_)),
      last_of_copy_(total_in(copy_)),
      at_(std::chrono::steady_clock::now()),
      copy_changed_(at_) {}

double HostLoad::share_of_copy(std::chrono::steady_clock::time_point now) {
  if (!copy_) return 0;
  const auto total = total_in(copy_);
  const std::chrono::duration<double> between = now - copy_changed_;
  if (total == last_of_copy_) {
    if (between > copy_is_old) copy_share_ = 0;  // nothing waited, or nobody tells any more
    return copy_share_;
  }
  const std::chrono::duration<double> waited = total - std::exchange(last_of_copy_, total);
  copy_changed_ = now;
  return copy_share_ = std::clamp(waited / between, 0.0, 1.0);
}

std::optional<double> HostLoad::share() {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> between = now - at_;
  if (between < window) return std::nullopt;
  const auto total = total_in(file_);
  const std::chrono::duration<double> waited = total - std::exchange(last_, total);
  at_ = now;
  return std::max(std::min(1.0, waited / between), share_of_copy(now));
}

QuietDeadline::QuietDeadline(std::chrono::nanoseconds budget)
    : quiet_(budget), patience_(budget + std::chrono::seconds(10)) {}

bool QuietDeadline::passed() {
  if (patience_.passed()) return true;
  const auto share = load_.share();
  if (!share) return false;
  if (*share >= HostLoad::busy) quiet_ = Deadline(quiet_.budget());
  return quiet_.passed();
}

bool seen_within(std::chrono::nanoseconds budget, const std::function<bool()>& seen) {
  if (seen()) return true;
  for (QuietDeadline limit(budget); !limit.passed();) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (seen()) return true;
  }
  return false;
}

}  // namespace kz
