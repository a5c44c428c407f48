// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include "shim/base/host_load.h"
#include "tests/harness/pattern.h"
#include "tests/harness/stats.h"

namespace kz::test {
namespace {

std::vector<double> times(size_t n) {
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<double>(i);
  return x;
}

TEST(HarnessStats, SummaryOfOneToAThousand) {
  std::vector<double> v;
  for (int i = 1000; i >= 1; --i) v.push_back(i);
  const Summary s = summarize(v);
  EXPECT_EQ(s.count, 1000u);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 1000);
  EXPECT_DOUBLE_EQ(s.mean, 500.5);
  EXPECT_EQ(s.p50, 500);  // nearest rank: the ceil(q n)-th smallest
  EXPECT_EQ(s.p99, 990);
  EXPECT_EQ(s.p999, 999);
  EXPECT_NEAR(s.variance, (1000.0 * 1000 - 1) / 12 * 1000 / 999, 1e-6);  // of 1..n: (n^2-1)/12, times n/(n-1)
  EXPECT_EQ(summarize({}).count, 0u);
}

TEST(HarnessStats, MedianAndMad) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({}), 0);
  const std::vector<double> v = {1, 1, 2, 2, 4, 6, 9};
  EXPECT_NEAR(mad(v), 1.4826, 1e-9);  // median 2, deviations 1 1 0 0 2 4 7
}

TEST(HarnessStats, TheilSenSeesThroughOutliers) {
  auto x = times(50);
  std::vector<double> y;
  for (double t : x) y.push_back(3 * t + 7);
  for (size_t i : {5, 20, 33}) y[i] += 10000;
  const Slope s = theil_sen(x, y);
  EXPECT_NEAR(s.slope, 3, 1e-9);
  EXPECT_TRUE(s.rising());
  EXPECT_LE(s.low, 3);
  EXPECT_GE(s.high, 3);
}

TEST(HarnessStats, NoiseDoesNotRise) {
  int rose = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<double> noise(100, 10);
    auto x = times(40);
    std::vector<double> y;
    for (size_t i = 0; i < x.size(); ++i) y.push_back(noise(rng));
    rose += theil_sen(x, y).rising();
  }
  EXPECT_LE(rose, 8);  // 2.5% expected; 8 of 100 or more has a chance below 0.5%
}

TEST(HarnessStats, APlateauDoesNotClimb) {
  auto x = times(100);
  std::vector<double> settles, climbs;
  for (double t : x) {
    settles.push_back(40 * (1 - std::exp(-t / 15)));
    climbs.push_back(0.4 * t);
  }
  EXPECT_FALSE(climbs_without_end(x, settles, 5));
  EXPECT_TRUE(climbs_without_end(x, climbs, 5));
  EXPECT_FALSE(climbs_without_end(x, climbs, 50)) << "less than what counts";
}

TEST(HarnessPattern, Crc32cOfTheRfcs) {
  // RFC 3720, B.4.
  std::vector<std::byte> zeroes(32), ones(32, std::byte{0xff}), up(32);
  for (int i = 0; i < 32; ++i) up[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(zeroes), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones), 0x62a8ab43u);
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
  // In pieces it is the same.
  EXPECT_EQ(crc32c(std::span(up).subspan(13), crc32c(std::span(up).first(13))), 0x46dd794eu);
}

TEST(HarnessPattern, SlicesOfAPayloadAgree) {
  std::vector<std::byte> whole(20000);
  fill_payload(whole, {9, 3});
  for (uint64_t offset : {0, 1, 31, 4095, 4096, 5000, 8191}) {
    std::vector<std::byte> slice(9001);
    fill_payload(slice, {9, 3}, offset);
    EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + static_cast<ptrdiff_t>(offset)))
        << offset;
    EXPECT_FALSE(first_mismatch(slice, {9, 3}, offset));
    slice[6000] ^= std::byte{1};
    EXPECT_EQ(first_mismatch(slice, {9, 3}, offset), 6000u);
  }
}

TEST(HarnessPattern, TagsNameTheirPage) {
  std::vector<std::byte> data(16384);
  fill_payload(data, {77, 5});
  for (uint64_t page = 0; page < 4; ++page) {
    const auto tag = read_tag(std::span(data).subspan(page * kTagPage));
    ASSERT_TRUE(tag);
    EXPECT_EQ(tag->seed, 77u);
    EXPECT_EQ(tag->sequence, 5u);
    EXPECT_EQ(tag->offset, page * kTagPage);
  }
  EXPECT_FALSE(read_tag(std::span(data).subspan(8)));
  data[20] ^= std::byte{1};
  EXPECT_FALSE(read_tag(data)) << "its CRC is wrong";
}

// Thrice as many busy threads as processors: some wait all the time.
TEST(HarnessHostLoad, SeesThatProcessorsAreFoughtOver) {
  HostLoad load;
  EXPECT_FALSE(load.share()) << "before a window has passed";
  std::atomic<bool> stop = false;
  std::vector<std::thread> hogs;
  for (unsigned i = 0; i < 3 * std::thread::hardware_concurrency(); ++i)
    hogs.emplace_back([&] {
      while (!stop) {
      }
    });
  std::this_thread::sleep_for(3 * HostLoad::window);
  const auto share = load.share();
  stop = true;
  for (auto& hog : hogs) hog.join();
  ASSERT_TRUE(share);
  if (std::ifstream("/proc/pressure/cpu").good())
    EXPECT_GT(*share, HostLoad::busy);
  else
    EXPECT_EQ(*share, 0) << "nothing is known of the host";
}

TEST(SeenWithin, EndsAsSoonAsItIsSeen) {
  const Deadline soon(5s);
  int looks = 0;
  EXPECT_TRUE(seen_within(60s, [&] { return ++looks == 3; }));
  EXPECT_FALSE(soon.passed());
  EXPECT_EQ(looks, 3);
}

TEST(SeenWithin, GivesTheWholeBudgetAndEndsOnABusyHostToo) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> neighbours;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
    neighbours.emplace_back([&] {
      while (!stop) {
      }
    });
  const Deadline clock(60s);
  EXPECT_FALSE(seen_within(300ms, [] { return false; }));
  EXPECT_GE(clock.elapsed(), 300ms);
  EXPECT_LT(clock.elapsed(), 20s);
  stop = true;
  for (auto& n : neighbours) n.join();
}

}  // namespace
}  // namespace kz::test
