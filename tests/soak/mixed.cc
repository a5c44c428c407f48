// SPDX-License-Identifier: GPL-2.0-or-later
// Everything at once for a while: all of it right, all of it accounted for, and nothing used up.
#include <algorithm>

#include "tests/harness/snapshot.h"
#include "tests/harness/stats.h"
#include "tests/soak/lane.h"

namespace kz::test {
namespace {

constexpr double kMixedSeconds = 7;

// What is watched while the load runs.
struct Series {
  std::vector<double> seconds, resident_kib, fds, median_us;

  void sample(double now, std::vector<double> times) {
    if (times.empty()) return;
    seconds.push_back(now);
    resident_kib.push_back(static_cast<double>(process_kib("VmRSS")));
    fds.push_back(static_cast<double>(open_fds()));
    median_us.push_back(median(std::move(times)));
  }

  void judge() const {
    const Slope memory = theil_sen(seconds, resident_kib), latency = theil_sen(seconds, median_us);
    metric("soak.memory_slope", memory.slope, "KiB/s");
    metric("soak.latency_slope", latency.slope, "us/s");
    if (climbs_without_end(seconds, resident_kib, 4096)) {
      evidence(ev::host_access,
               {{"what", "memory_climbs"}, {"path", "/proc/self/status"}, {"kib_per_s", memory.slope}});
      ADD_FAILURE() << "this process grew by " << memory.slope << " KiB a second without end";
    }
    if (!fds.empty() && fds.back() > fds.front()) {
      evidence(ev::host_access,
               {{"what", "fds_climb"}, {"path", "/proc/self/fd"}, {"count", fds.back() - fds.front()}});
      ADD_FAILURE() << "open descriptors rose from " << fds.front() << " to " << fds.back();
    }
  }
};

}  // namespace

KZ_TEST(soak, mixed_load,
        {.meaning = "copies, checksums, products, allocations and time stamps at once: all right, all "
                    "accounted for, nothing leaks",
         .level = 3,
         .needs = {Cap::dma, Cap::hbm_alloc, Cap::contexts, Cap::timestamp},
         .limit = 40s,
         .scaled = true}) {
  auto first = device().create_context(), second = device().create_context();
  std::vector<std::unique_ptr<Lane>> lanes;
  lanes.push_back(copy_lane(device(), *first, rng()()));
  lanes.push_back(copy_lane(device(), *second, rng()()));
  if (caps().has(Cap::matmul_f32)) lanes.push_back(compute_lane(device(), *second, rng()()));
  lanes.push_back(alloc_lane(device(), *first, rng()()));
  lanes.push_back(clock_lane(device(), *second));

  Series series;
  const auto start = Clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double next = 1;  // the first second warms up
  std::vector<double> times;
  while (seconds() < kMixedSeconds * scale() && !HasFailure()) {
    for (auto& lane : lanes) lane->step();
    if (seconds() < next) continue;
    for (auto& lane : lanes) {
      auto more = lane->take_times();
      times.insert(times.end(), more.begin(), more.end());
    }
    series.sample(seconds(), std::exchange(times, {}));
    next += 0.2 * scale();
  }
  uint64_t sent = 0, completed = 0;
  for (auto& lane : lanes) {
    lane->drain();
    sent += lane->count().sent;
    completed += lane->count().completed;
    metric(std::string("soak.commands.") + lane->name(), static_cast<double>(lane->count().completed),
           "commands");
  }
  EXPECT_EQ(sent, completed) << "commands are missing in the account";
  series.judge();
}

}  // namespace kz::test
