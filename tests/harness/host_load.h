// SPDX-License-Identifier: GPL-2.0-or-later
// What the host itself takes from a measurement: threads that could run and got no processor.
#pragma once

#include <chrono>

#include "shim/base/fd.h"

namespace kz::test {

// Time in which some runnable thread of the host waited for a processor: "some" of /proc/pressure/cpu, in
// whole microseconds (Linux, Documentation/accounting/psi.rst). A device that is slow leaves it alone, other
// work beside the test does not. Where the kernel does not tell it, no time counts as waited.
class HostLoad {
 public:
  HostLoad();
  bool known() const { return bool(file_); }
  // Since the call before, or since construction.
  std::chrono::microseconds waited();
  // waited() as a share of the time since the call before, 0..1.
  double share();

 private:
  std::chrono::microseconds total() const;

  Fd file_;
  std::chrono::microseconds last_{0};
  std::chrono::steady_clock::time_point at_;
};

}  // namespace kz::test
