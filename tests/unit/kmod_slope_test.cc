// SPDX-License-Identifier: GPL-2.0-or-later
// The judge of growth, measured: how often it cries for nothing, and what it finds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/kmod/slope.h"

namespace kz::test {
namespace {

constexpr int series_of_a_kernel = 250, cycles = 24;

// What counts of a kernel at rest do: most stand still, some jitter, some wander, some are a cache that fills
// up.
std::vector<double> quiet(std::mt19937_64& rng, int kind) {
  std::normal_distribution<double> normal;
  std::vector<double> out;
  double walk = 0;
  for (int i = 0; i < cycles; ++i) {
    walk += normal(rng);
    switch (kind % 4) {
      case 0:
        out.push_back(1000);
        break;
      case 1:
        out.push_back(std::round(1000 + 5 * normal(rng)));
        break;
      case 2:
        out.push_back(1000 + (rng() % 8 == 0 ? 64 : 0));
        break;
      default:
        out.push_back(std::round(1000 + 200 * (1 - std::exp(-i / 2.0)) + normal(rng)));
        break;
    }
  }
  return out;
}

// The 99.9% upper limit of k events in n trials at rate p, by the normal approximation of the binomial.
double most_of(double n, double p) { return n * p + 3.1 * std::sqrt(n * p * (1 - p)) + 1; }
double fewest_of(double n, double p) { return n * p - 3.1 * std::sqrt(n * p * (1 - p)) - 1; }

TEST(KmodSlope, FalseAlarmsStayBelowTheRateItNames) {
  constexpr int kernels = 200;
  int alarms = 0;
  for (int k = 0; k < kernels; ++k) {
    std::mt19937_64 rng(static_cast<uint64_t>(k) + 1);
    Series all;
    for (int i = 0; i < series_of_a_kernel; ++i) all[fmt::format("s{}", i)] = quiet(rng, i);
    alarms += growing(all, 0.5).empty() ? 0 : 1;
  }
  RecordProperty("alarms", alarms);
  EXPECT_LE(alarms, most_of(kernels, growth_alarm)) << alarms << " of " << kernels;
}

TEST(KmodSlope, PureNoiseWithoutALeastSlopeKeepsTheRateToo) {
  constexpr int kernels = 400;
  int alarms = 0;
  for (int k = 0; k < kernels; ++k) {
    std::mt19937_64 rng(static_cast<uint64_t>(k) + 7000);
    std::normal_distribution<double> normal;
    Series all;
    for (int i = 0; i < 100; ++i)
      for (int c = 0; c < cycles; ++c) all[fmt::format("s{}", i)].push_back(normal(rng));
    alarms += growing(all).empty() ? 0 : 1;
  }
  EXPECT_LE(alarms, most_of(kernels, growth_alarm)) << alarms << " of " << kernels;
}

// One object a cycle, among 250 series that stand still, in 24 cycles: always where nothing else moves the
// count, in 95 of 100 where the others move it by three objects up and down.
TEST(KmodSlope, FindsALeakOfOneObjectACycle) {
  for (auto [jitter, rate] : {std::pair{0.0, 1.0}, {1.0, 0.99}, {3.0, 0.95}}) {
    constexpr int trials = 200;
    int found = 0;
    Series all;
    for (int i = 0; i < series_of_a_kernel; ++i)
      all[fmt::format("s{}", i)] = std::vector<double>(cycles, 1000);
    for (int k = 0; k < trials; ++k) {
      std::mt19937_64 rng(static_cast<uint64_t>(k) + 31);
      std::normal_distribution<double> normal;
      all["leak"].clear();
      for (int c = 0; c < cycles; ++c) all["leak"].push_back(std::round(5000 + c + jitter * normal(rng)));
      for (auto& g : growing(all, 0.5)) found += g.name == "leak";
    }
    EXPECT_GE(found, fewest_of(trials, rate)) << found << " of " << trials << " at jitter " << jitter;
  }
}

TEST(KmodSlope, ACacheThatFillsUpIsNoLeak) {
  Series all;
  for (int c = 0; c < 40; ++c) all["cache"].push_back(std::round(1000 * (1 - std::exp(-c / 8.0))));
  EXPECT_TRUE(growing(all, 0.5).empty());
}

TEST(KmodSlope, OneWildValueSaysNothing) {
  Series all;
  for (int c = 0; c < cycles; ++c) all["x"].push_back(c == cycles - 1 ? 1e9 : 100);
  EXPECT_TRUE(growing(all).empty());
  EXPECT_EQ(trend_of(all["x"]).slope, 0);
}

TEST(KmodSlope, TooFewPointsSayNothing) {
  EXPECT_TRUE(growing({{"x", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}}).empty());
  EXPECT_EQ(growing({{"x", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}).size(), 1u);
  EXPECT_EQ(trend_of({}).p_rising, 1);
  const std::vector<double> flat(30, 7);
  EXPECT_EQ(trend_of(flat).p_rising, 1);
}

// S of 1..12 is 66, its variance 12*11*29/18; p is the normal tail at (66-1)/sqrt(212.67).
TEST(KmodSlope, TheRankTestIsKendalls) {
  std::vector<double> v;
  for (int i = 1; i <= 12; ++i) v.push_back(i);
  const Trend t = trend_of(v);
  EXPECT_NEAR(t.p_rising, 0.5 * std::erfc(65 / std::sqrt(12.0 * 11 * 29 / 18) / std::sqrt(2.0)), 1e-12);
  EXPECT_DOUBLE_EQ(t.slope, 1);
}

TEST(KmodSlope, WhatCleanCyclesExclude) {
  EXPECT_NEAR(excluded_rate(1000), 3.0 / 1000, 1e-5);
  EXPECT_NEAR(excluded_rate(20), 0.139, 0.001);
  EXPECT_EQ(excluded_rate(0), 1);
}

}  // namespace
}  // namespace kz::test
