// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/histogram.h"

#include <algorithm>
#include <cmath>

namespace kz::load {

uint64_t Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  auto rank = static_cast<uint64_t>(std::ceil(std::clamp(q, 0.0, 1.0) * static_cast<double>(count_)));
  rank = std::clamp<uint64_t>(rank, 1, count_);
  uint64_t seen = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    seen += counts_[step];
    if (seen >= rank) return std::clamp(highest_of(step), min(), max_);
  }
  return max_;
}

void Histogram::merge(const Histogram& other) {
  for (size_t step = 0; step < kSteps; ++step) counts_[step] += other.counts_[step];
  count_ += other.count_;
  sum_ += other.sum_;
  max_ = std::max(max_, other.max_);
  below_ = std::max(below_, other.below_);
}

}  // namespace kz::load
