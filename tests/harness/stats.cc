// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "tests/harness/test.h"

namespace kz::test {
namespace {

double rank(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto n = static_cast<double>(sorted.size());
  const auto at = static_cast<size_t>(std::clamp(std::ceil(q * n) - 1, 0.0, n - 1));
  return sorted[at];
}

}  // namespace

Summary summarize(std::vector<double> values) {
  Summary s;
  s.count = values.size();
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  s.min = values.front();
  s.max = values.back();
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  s.p50 = rank(values, 0.5);
  s.p90 = rank(values, 0.9);
  s.p99 = rank(values, 0.99);
  s.p999 = rank(values, 0.999);
  if (values.size() > 1) {
    double sum = 0;
    for (double v : values) sum += (v - s.mean) * (v - s.mean);
    s.variance = sum / static_cast<double>(values.size() - 1);
  }
  return s;
}

void report_summary(std::string_view name, const Summary& s, std::string_view unit) {
  const std::string n(name), u(unit);
  metric(n + ".min", s.min, u);
  metric(n + ".mean", s.mean, u);
  metric(n + ".p50", s.p50, u);
  metric(n + ".p99", s.p99, u);
  metric(n + ".p999", s.p999, u);
  metric(n + ".max", s.max, u);
  metric(n + ".variance", s.variance, u + "^2");
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return rank(values, q);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t mid = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + mid, values.end());
  if (values.size() % 2) return values[mid];
  return (values[mid] + *std::max_element(values.begin(), values.begin() + mid)) / 2;
}

double mad(std::span<const double> values) {
  const double m = median({values.begin(), values.end()});
  std::vector<double> off;
  off.reserve(values.size());
  for (double v : values) off.push_back(std::abs(v - m));
  return 1.4826 * median(std::move(off));
}

Slope theil_sen(std::span<const double> x, std::span<const double> y) {
  Slope s;
  const size_t all = std::min(x.size(), y.size());
  const size_t step = std::max<size_t>(1, (all + 399) / 400);
  std::vector<size_t> used;
  for (size_t i = 0; i < all; i += step) used.push_back(i);
  s.points = used.size();
  std::vector<double> slopes;
  slopes.reserve(used.size() * used.size() / 2);
  for (size_t i = 0; i < used.size(); ++i)
    for (size_t j = i + 1; j < used.size(); ++j)
      if (const double dx = x[used[j]] - x[used[i]]; dx != 0)
        slopes.push_back((y[used[j]] - y[used[i]]) / dx);
  if (slopes.empty()) return s;
  std::sort(slopes.begin(), slopes.end());
  s.slope = median(slopes);
  // Var(S) of Kendall's S is n(n-1)(2n+5)/18; the interval takes the order statistics (N -+ 1.96 sqrt Var)/2.
  const auto n = static_cast<double>(used.size()), pairs = static_cast<double>(slopes.size());
  const double half = 1.96 * std::sqrt(n * (n - 1) * (2 * n + 5) / 18) / 2;
  auto pick = [&](double at) { return slopes[static_cast<size_t>(std::clamp(at, 0.0, pairs - 1))]; };
  s.low = pick(std::floor(pairs / 2 - half));
  s.high = pick(std::ceil(pairs / 2 + half));
  return s;
}

bool climbs_without_end(std::span<const double> x, std::span<const double> y, double least) {
  const size_t n = std::min(x.size(), y.size());
  if (n < 16) return false;
  const size_t half = n / 2;
  const Slope first = theil_sen(x.first(half), y.first(half));
  const Slope second = theil_sen(x.subspan(half, n - half), y.subspan(half, n - half));
  const double rise = median({y.end() - 4, y.end()}) - median({y.begin(), y.begin() + 4});
  return rise >= least && second.rising() && second.slope >= 0.6 * first.slope;
}

}  // namespace kz::test
