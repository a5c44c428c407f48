// SPDX-License-Identifier: GPL-2.0-or-later
// Does a count grow with every cycle, or does it only wander? Rank statistics, so that one wild value says
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kz::test {

// Mann-Kendall's test for a trend (Mann 1945, Kendall 1975), its variance corrected for ties, with continuity
// correction; the slope is Theil-Sen's with Sen's interval (Sen 1968).
struct Trend {
  uint64_t points = 0;
  double p_rising = 1;         // one-sided: how often noise alone rises so consistently
  double slope = 0;            // per cycle
  double low = 0, high = 0;    // of the slope, 95%
  double first = 0, last = 0;  // medians of the first and last quarter
};
Trend trend_of(std::span<const double> values);

// Counts by name, one value a cycle.
using Series = std::map<std::string, std::vector<double>>;

struct Growth {
  std::string name;
  Trend trend;
};

// False alarms of a whole call of growing(), over all series together, when nothing grows.
inline constexpr double growth_alarm = 0.01;

// Series that grow all the way: p below growth_alarm over the number of series (Bonferroni), a slope interval
// above zero, and both halves rising, so that a cache which fills up once is none. `least`: slope per cycle
// below which nothing is said. Shorter than 12 points: nothing.
std::vector<Growth> growing(const Series& series, double least = 0);

// What N clean cycles exclude at 95% confidence: a failure rate above this (about 3/N).
double excluded_rate(uint64_t cycles);

}  // namespace kz::test
