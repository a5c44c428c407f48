// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/host_load.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "shim/base/units.h"

namespace kz::test {

HostLoad::HostLoad()
    : file_(::open("/proc/pressure/cpu", O_RDONLY | O_CLOEXEC)), at_(std::chrono::steady_clock::now()) {
  last_ = total();
}

// some avg10=0.00 avg60=0.00 avg300=0.00 total=15974917266
std::chrono::microseconds HostLoad::total() const {
  char text[256];
  const ssize_t n = file_ ? ::pread(file_.get(), text, sizeof text - 1, 0) : 0;
  if (n <= 0) return {};
  text[n] = '\0';
  const char* found = std::strstr(text, "total=");
  return std::chrono::microseconds(found ? std::strtoll(found + 6, nullptr, 10) : 0);
}

std::optional<double> HostLoad::share() {
  const std::chrono::duration<double> between = std::chrono::steady_clock::now() - at_;
  if (between < window) return std::nullopt;
  const auto now = total();
  const std::chrono::duration<double> waited = now - std::exchange(last_, now);
  at_ = std::chrono::steady_clock::now();
  return std::min(1.0, waited / between);
}

bool seen_within(std::chrono::nanoseconds budget, const std::function<bool()>& seen) {
  using namespace std::chrono_literals;
  if (seen()) return true;
  HostLoad load;
  Deadline quiet(budget);
  for (const Deadline patience(budget + 10s);;) {
    std::this_thread::sleep_for(200us);
    if (seen()) return true;
    if (patience.passed()) return false;
    const auto share = load.share();
    if (share && *share >= HostLoad::busy) quiet = Deadline(budget);
    // Only a reading says that the time up to now was quiet.
    if (share && quiet.passed()) return false;
  }
}

}  // namespace kz::test
