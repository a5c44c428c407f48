// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/slope.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/harness/stats.h"

namespace kz::test {
namespace {

constexpr size_t fewest = 12;

// Sum of the signs of all later-minus-earlier differences.
double kendall_s(std::span<const double> y) {
  double s = 0;
  for (size_t i = 0; i < y.size(); ++i)
    for (size_t j = i + 1; j < y.size(); ++j) s += (y[j] > y[i]) - (y[j] < y[i]);
  return s;
}

double kendall_variance(std::span<const double> y) {
  auto term = [](double n) { return n * (n - 1) * (2 * n + 5); };
  std::vector<double> sorted(y.begin(), y.end());
  std::sort(sorted.begin(), sorted.end());
  double sum = term(static_cast<double>(y.size()));
  for (auto at = sorted.begin(); at != sorted.end();) {
    auto end = std::upper_bound(at, sorted.end(), *at);
    sum -= term(static_cast<double>(end - at));
    at = end;
  }
  return sum / 18;
}

double rising_p(std::span<const double> y) {
  const double s = kendall_s(y), variance = kendall_variance(y);
  if (s <= 0 || variance <= 0) return 1;
  return 0.5 * std::erfc((s - 1) / std::sqrt(variance) / std::sqrt(2.0));
}

}  // namespace

Trend trend_of(std::span<const double> y) {
  Trend t{.points = y.size()};
  if (y.size() < 2) return t;
  std::vector<double> x(y.size());
  std::iota(x.begin(), x.end(), 0);
  const Slope s = theil_sen(x, y);
  const size_t quarter = std::max<size_t>(1, y.size() / 4);
  t.p_rising = rising_p(y);
  t.slope = s.slope;
  t.low = s.low;
  t.high = s.high;
  t.first = median({y.begin(), y.begin() + static_cast<std::ptrdiff_t>(quarter)});
  t.last = median({y.end() - static_cast<std::ptrdiff_t>(quarter), y.end()});
  return t;
}

std::vector<Growth> growing(const Series& series, double least) {
  std::vector<Growth> out;
  for (const auto& [name, values] : series) {
    if (values.size() < fewest) continue;
    if (rising_p(values) > growth_alarm / static_cast<double>(series.size())) continue;
    const Trend t = trend_of(values);
    if (t.low <= 0 || t.slope < least) continue;
    const std::span<const double> all(values);
    const size_t half = values.size() / 2;
    const double first = trend_of(all.first(half)).slope, second = trend_of(all.subspan(half)).slope;
    // One that settles rises early; one that leaks rises on, about as fast.
    if (first > 0 && second >= 0.5 * first) out.push_back({name, t});
  }
  return out;
}

double excluded_rate(uint64_t cycles) {
  return cycles == 0 ? 1 : 1 - std::pow(0.05, 1.0 / static_cast<double>(cycles));
}

}  // namespace kz::test
