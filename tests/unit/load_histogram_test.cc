// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "shim/load/histogram.h"

namespace kz::load {
namespace {

constexpr double quantiles[] = {0, 0.01, 0.5, 0.9, 0.99, 0.999, 0.9999, 1};

// By its definition, from all values: the smallest that at least q of them do not exceed.
uint64_t exact_quantile(std::vector<uint64_t> values, double q) {
  std::sort(values.begin(), values.end());
  auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

std::vector<uint64_t> log_uniform(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> exponent(0, 40);
  std::vector<uint64_t> values(n);
  for (auto& v : values) v = static_cast<uint64_t>(std::exp2(exponent(rng)));
  return values;
}

std::vector<uint64_t> like_latencies(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::lognormal_distribution<double> usual(std::log(20'000), 0.3);
  std::vector<uint64_t> values(n);
  for (auto& v : values) v = static_cast<uint64_t>(usual(rng)) * (rng() % 500 == 0 ? 300 : 1);
  return values;
}

std::unique_ptr<Histogram> filled(const std::vector<uint64_t>& values) {
  auto h = std::make_unique<Histogram>();
  for (uint64_t v : values) h->record(v);
  return h;
}

TEST(load_histogram, quantiles_are_those_of_the_sorted_values_to_three_digits) {
  for (uint64_t seed = 1; seed <= 4; ++seed)
    for (const auto& values : {log_uniform(100'003, seed), like_latencies(50'000, seed)}) {
      auto h = filled(values);
      for (double q : quantiles) {
        uint64_t want = exact_quantile(values, q), got = h->quantile(q);
        EXPECT_GE(got, want) << q;
        EXPECT_LE(static_cast<double>(got), static_cast<double>(want) * 1.001) << q;
      }
      EXPECT_EQ(h->min(), *std::ranges::min_element(values));
      EXPECT_EQ(h->max(), *std::ranges::max_element(values));
      long double sum = 0;
      for (uint64_t v : values) sum += v;
      EXPECT_NEAR(h->mean(), static_cast<double>(sum / values.size()), h->mean() * 1e-12);
    }
}

TEST(load_histogram, a_merge_is_the_histogram_of_all_values) {
  auto first = log_uniform(10'000, 7), second = like_latencies(777, 8), all = first;
  all.insert(all.end(), second.begin(), second.end());
  auto merged = filled(first), other = filled(second), want = filled(all);
  merged->merge(*other);
  EXPECT_EQ(merged->count(), want->count());
  EXPECT_EQ(merged->min(), want->min());
  EXPECT_EQ(merged->max(), want->max());
  EXPECT_EQ(merged->mean(), want->mean());
  for (double q = 0; q <= 1; q += 0.001) EXPECT_EQ(merged->quantile(q), want->quantile(q));
}

TEST(load_histogram, merging_an_empty_one_changes_nothing) {
  auto h = filled({5, 1000});
  h->merge(*std::make_unique<Histogram>());
  EXPECT_EQ(h->min(), 5u);
  EXPECT_EQ(h->count(), 2u);
  auto empty = std::make_unique<Histogram>();
  empty->merge(*h);
  EXPECT_EQ(empty->min(), 5u);
  EXPECT_EQ(empty->max(), 1000u);
}

TEST(load_histogram, nothing_recorded_reads_as_zero) {
  auto h = std::make_unique<Histogram>();
  EXPECT_EQ(h->count(), 0u);
  EXPECT_EQ(h->min(), 0u);
  EXPECT_EQ(h->max(), 0u);
  EXPECT_EQ(h->mean(), 0);
  EXPECT_EQ(h->quantile(0.5), 0u);
}

TEST(load_histogram, steps_follow_one_another_without_gap) {
  for (size_t step = 0; step + 1 < Histogram::kSteps; ++step)
    ASSERT_EQ(Histogram::highest_of(step) + 1, Histogram::lowest_of(step + 1)) << step;
  for (size_t step = 0; step < Histogram::kSteps; ++step) {
    ASSERT_EQ(Histogram::step_of(Histogram::lowest_of(step)), step);
    ASSERT_EQ(Histogram::step_of(Histogram::highest_of(step)), step);
  }
}

TEST(load_histogram, what_is_beyond_the_range_counts_as_the_last_step_and_keeps_its_maximum) {
  auto h = filled({UINT64_MAX / 2, 3});
  EXPECT_EQ(h->max(), UINT64_MAX / 2);
  EXPECT_EQ(h->min(), 3u);
  EXPECT_EQ(h->count(), 2u);
  EXPECT_GE(h->quantile(1), Histogram::kMost);
}

}  // namespace
}  // namespace kz::load
