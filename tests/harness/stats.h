// SPDX-License-Identifier: GPL-2.0-or-later
// Statistics that a noisy machine does not fool: order statistics, and slopes from medians of pairs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace kz::test {

struct Summary {
  uint64_t count = 0;
  double min = 0, mean = 0, p50 = 0, p90 = 0, p99 = 0, p999 = 0, max = 0;
  double variance = 0;  // of the sample, n - 1
};
Summary summarize(std::vector<double> values);
// Reports NAME.min, .mean, .p50, .p99, .p999, .max and .variance as metrics.
void report_summary(std::string_view name, const Summary& summary, std::string_view unit);

// The q-quantile (0..1) by the nearest-rank rule; `values` need not be sorted. 0 for none.
double quantile(std::vector<double> values, double q);
double median(std::vector<double> values);
// Median absolute deviation times 1.4826 (the standard deviation's scale for normal data).
double mad(std::span<const double> values);

// Theil-Sen: the median of the slopes of all pairs, with a two-sided 95% interval by Kendall's variance (Sen
// 1968).
struct Slope {
  double slope = 0, low = 0, high = 0;  // per unit of x
  uint64_t points = 0;
  // The interval lies above (below) zero.
  bool rising() const { return points >= 8 && low > 0; }
  bool falling() const { return points >= 8 && high < 0; }
};
// At most 400 points are used, evenly chosen.
Slope theil_sen(std::span<const double> x, std::span<const double> y);

// A series that rises in its second half as fast as in its first climbs without end; one that settles does
// not. Needs 16 points; `least` is the rise over the whole series below which nothing is said.
bool climbs_without_end(std::span<const double> x, std::span<const double> y, double least);

}  // namespace kz::test
