// SPDX-License-Identifier: GPL-2.0-or-later
// What the host itself takes from a measurement: threads that could run and got no processor.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "shim/base/fd.h"
#include "shim/base/units.h"

namespace kz {

// How much of the time some runnable thread of the host waited for a processor: "some" of /proc/pressure/cpu
// (Linux, Documentation/accounting/psi.rst). A device that is slow leaves it alone, other work beside the
// test does not. Where the kernel does not tell it, nothing counts as waited.
// A guest cannot see what its host does; $KANGZAO_HOST_PRESSURE names a copy of the host's own file, made
// anew about once a second, and the worse of both counts.
class HostLoad {
 public:
  // The kernel weighs processors by whole ticks since the last reading: more frequent ones tell less than
  // there was.
  static constexpr auto window = std::chrono::milliseconds(200);
  // Above this a measurement of single commands says more of the host than of the device. With the file
  // sampled every window beside `kangzao run --filter soak.latency` on two processors, the test's own
  // hand-overs to a software device came to 0.04 to 0.15; with one busy neighbour it was 0.47 to 0.98.
  static constexpr double busy = 0.3;

  HostLoad();
  // The share, 0..1, since the call before or construction; nothing as long as a window has not passed.
  std::optional<double> share();

 private:
  // A copy changes at its own times: its share is taken from one change to the next, and holds until then.
  double share_of_copy(std::chrono::steady_clock::time_point now);

  Fd file_, copy_;
  std::chrono::microseconds last_{0}, last_of_copy_{0};
  std::chrono::steady_clock::time_point at_, copy_changed_;
  double copy_share_ = 0;
};

// A time limit that only a host with processors to spare can use up: what waits for it may need one itself.
// Where the host is busy all the time it ends ten seconds late: nothing is kept from a processor for that
// long.
class QuietDeadline {
 public:
  explicit QuietDeadline(std::chrono::nanoseconds budget);
  // True only after a reading that says that the time up to now was quiet: not before HostLoad::window.
  bool passed();

 private:
  HostLoad load_;
  Deadline quiet_, patience_;
};

// True as soon as `seen` is; false when it was not within `budget` of quiet time.
bool seen_within(std::chrono::nanoseconds budget, const std::function<bool()>& seen);

}  // namespace kz
