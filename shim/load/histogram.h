// SPDX-License-Identifier: GPL-2.0-or-later
// A log-linear histogram of times: 3 significant digits at any size, fixed memory, and one that can be
// merged.
//
// Values below 2048 ns are kept exactly; above, each power of two is cut into 1024 steps, so that a value is
// known to 1/1024 of itself. It is plain memory without pointers: zero bytes are an empty histogram, and it
// may lie in memory that several processes share, with one writer.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kz::load {

class Histogram {
 public:
  static constexpr unsigned kStepBits = 10;
  static constexpr unsigned kTopBit = 41;  // beyond 2^42 ns, 73 minutes, values count as the last step
  static constexpr uint64_t kMost = (uint64_t{2} << kTopBit) - 1;
  static constexpr size_t kSteps = (size_t{kTopBit - kStepBits + 2}) << kStepBits;

  // The step that a value falls into, and the smallest and largest value of a step.
  static constexpr size_t step_of(uint64_t value) {
    value = value < kMost ? value : kMost;
    auto shift = static_cast<unsigned>(63 - kStepBits) -
                 static_cast<unsigned>(std::countl_zero(value | (uint64_t{1} << kStepBits)));
    return (static_cast<size_t>(shift) << kStepBits) + static_cast<size_t>(value >> shift);
  }
  static constexpr uint64_t lowest_of(size_t step) {
    unsigned shift = shift_of(step);
    return static_cast<uint64_t>(step - (static_cast<size_t>(shift) << kStepBits)) << shift;
  }
  static constexpr uint64_t highest_of(size_t step) {
    return lowest_of(step) + (uint64_t{1} << shift_of(step)) - 1;
  }

  void record(uint64_t ns) { record(ns, 1); }
  void record(uint64_t ns, uint64_t times) {
    counts_[step_of(ns)] += times;
    count_ += times;
    sum_ += ns * times;
    if (ns > max_) max_ = ns;
    if (~ns > below_) below_ = ~ns;
  }

  uint64_t count() const { return count_; }
  uint64_t min() const { return count_ != 0 ? ~below_ : 0; }  // exact; 0 where nothing was recorded
  uint64_t max() const { return max_; }                       // exact
  double mean() const { return count_ != 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0; }
  // The smallest value that at least `q` (0 .. 1) of all values do not exceed, rounded up by less than 0.1 %.
  // 0 where nothing was recorded.
  uint64_t quantile(double q) const;
  void merge(const Histogram& other);
  void clear() { *this = Histogram{}; }

 private:
  static constexpr unsigned shift_of(size_t step) {
    return step < (size_t{2} << kStepBits) ? 0 : static_cast<unsigned>((step >> kStepBits) - 1);
  }

  uint64_t count_ = 0, sum_ = 0, max_ = 0;
  uint64_t below_ = 0;  // the complement of the smallest, so that zero bytes are empty
  std::array<uint64_t, kSteps> counts_{};
};

}  // namespace kz::load
