// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/arrivals.h"

#include <cmath>

namespace kz::load {

Schedule::Schedule(const Job& job, const WorkerId& id)
    : rate_(job.rate),
      ramp_(std::chrono::duration<double>(job.ramp).count()),
      burst_(job.burst),
      index_(id.sender),
      senders_(id.senders),
      poisson_(job.arrivals == Arrivals::poisson),
      rng_(job.seed * 0x9e3779b97f4a7c15u + (uint64_t{id.job} << 48) + (uint64_t{id.device} << 32) +
           id.sender) {
  if (poisson_) drawn_ = gap_(rng_) * senders_;
  set_next();
}

// When so many operations are due: while the rate rises from 0 over R seconds to r, r t^2 / 2R of them are;
// then r a second.
std::chrono::nanoseconds Schedule::time_of(double operations) const {
  double in_ramp = rate_ * ramp_ / 2;
  double seconds = operations < in_ramp ? std::sqrt(2 * ramp_ * operations / rate_)
                                        : ramp_ + (operations - in_ramp) / rate_;
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(seconds, 9e9) * 1e9));
}

void Schedule::set_next() {
  if (poisson_) {
    next_ = time_of(drawn_);
    return;
  }
  uint64_t of_job = n_ * senders_ + index_;
  next_ = time_of(static_cast<double>(of_job - of_job % burst_));
}

void Schedule::advance() {
  ++n_;
  // With bursts only every burst-th operation draws a gap, of so many operations' worth.
  if (poisson_ && n_ % burst_ == 0) drawn_ += gap_(rng_) * senders_ * burst_;
  set_next();
}

}  // namespace kz::load
