// SPDX-License-Identifier: GPL-2.0-or-later
// When each operation of an open loop is to start. The schedule knows nothing of how the device does: a
// device that stalls gets no fewer operations, they only start late.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

#include "shim/load/job.h"

namespace kz::load {

// The times of one sender among those that share the rate of a job: its n-th operation is the job's
// operation n * id.senders + id.sender. Copies go through the same times again.
class Schedule {
 public:
  // Other jobs and devices than these draw other times, so that bursts of theirs fall together by chance
  // only.
  Schedule(const Job& job, const WorkerId& id);

  // Of the next operation, since the start of the load.
  std::chrono::nanoseconds next() const { return next_; }
  uint64_t index() const { return n_; }  // operations passed so far
  void advance();

 private:
  std::chrono::nanoseconds time_of(double operations) const;
  void set_next();

  double rate_, ramp_;  // operations a second of the job; seconds
  unsigned burst_, index_, senders_;
  bool poisson_;
  std::mt19937_64 rng_;
  std::exponential_distribution<double> gap_{1.0};
  double drawn_ = 0;  // of Poisson arrivals: operations' worth of time passed
  uint64_t n_ = 0;
  std::chrono::nanoseconds next_{0};
};

}  // namespace kz::load
