// SPDX-License-Identifier: GPL-2.0-or-later
// Heat and power: at rest the temperature settles, under load everything stays within its limits.
#include <algorithm>
#include <deque>
#include <thread>

#include "shim/uapi/kz_telemetry.h"
#include "tests/harness/snapshot.h"
#include "tests/harness/stats.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

struct Point {
  double seconds, celsius;
};

void limit(const char* what, double value, double bound, bool load, double celsius, const std::string& text) {
  evidence(ev::limits,
           {{"what", what}, {"value", value}, {"limit", bound}, {"under_load", load}, {"celsius", celsius}});
  ADD_FAILURE() << text;
}

// Slope of the last `span` seconds, K/s; nothing while there is less.
std::optional<double> recent_slope(const std::deque<Point>& points, double span) {
  std::vector<double> x, y;
  for (const auto& p : points)
    if (p.seconds >= points.back().seconds - span) x.push_back(p.seconds), y.push_back(p.celsius);
  if (points.back().seconds - points.front().seconds < span || x.size() < 5) return std::nullopt;
  return theil_sen(x, y).slope;
}

}  // namespace

KZ_TEST(soak, rest,
        {.meaning = "without work the temperature falls or settles; it does not climb",
         .level = 3,
         .needs = {Cap::telemetry},
         .limit = 30s}) {
  if (!device().telemetry().core_celsius) skip("the device does not tell its temperature");
  std::deque<Point> points;
  const auto start = Clock::now();
  double settled_since = -1;
  std::optional<uint64_t> last;
  for (Deadline watch(8s); !watch.passed(); std::this_thread::sleep_until(Clock::now() + 20ms)) {
    const Telemetry t = device().telemetry();
    if (t.all_ones) block("the telemetry block reads as all ones: there is no temperature");
    if (t.device_ns == last) continue;  // the same sample again
    last = t.device_ns;
    const double now = std::chrono::duration<double>(Clock::now() - start).count();
    points.push_back({now, *t.core_celsius});
    const auto slope = recent_slope(points, 1.0);
    if (!slope) continue;
    if (*slope > 0.5 && *recent_slope(points, 0.6) > 0.5) {
      metric("soak.rest_slope", *slope, "K/s");
      return limit("climbing", *t.core_celsius, t.limit_celsius.value_or(0), false, *t.core_celsius,
                   "the temperature climbs at rest, by " + std::to_string(*slope) + " K a second");
    }
    // Settled is more than passing through a minimum on the way up.
    if (std::abs(*slope) > 0.25)
      settled_since = -1;
    else if (settled_since < 0)
      settled_since = now;
    else if (now - settled_since > 1.2)
      break;
  }
  metric("soak.rest_celsius", points.empty() ? 0 : points.back().celsius, "C");
}

KZ_TEST(soak, heat,
        {.meaning = "under full load temperature, power, clock and fan stay within the device's own limits, "
                    "and it stays up",
         .level = 3,
         .needs = {Cap::telemetry, Cap::hbm_alloc, Cap::queues},
         .limit = 30s,
         .scaled = true}) {
  constexpr uint64_t kLen = uint64_t{4} << 20;
  auto context = device().create_context();
  auto hbm = context->alloc({4 * kLen});
  std::vector<std::unique_ptr<QueueGuard>> queues;
  for (int i = 0; i < 3; ++i) queues.push_back(open_queue(*context, {.order = 4}));
  const bool multiplies = caps().has(Cap::matmul_f32);
  auto feed = [&](QueueGuard& queue, uint64_t lane) {
    const HbmAddr here = hbm->addr() + lane * kLen;
    while (queue.outstanding() < 8) {
      if (multiplies && lane > 0)
        queue.submit({cmd::Matmul{.a = here, .b = here, .c = here + kLen / 2, .m = 256, .n = 256, .k = 256}});
      else
        queue.submit({cmd::Fill{at(here), kLen, 0x3f8000003f800000}});
    }
  };
  std::vector<double> celsius, watts, clock;
  const Telemetry before = device().telemetry();
  uint32_t throttle = 0;
  bool fan = true;
  const double seconds = 2.5 * scale();
  const auto start = Clock::now();
  Telemetry t = before;
  auto progress = start;
  for (auto now = start; std::chrono::duration<double>(now - start).count() < seconds; now = Clock::now()) {
    for (size_t i = 0; i < queues.size(); ++i) {
      for (const auto& c : queues[i]->poll()) {
        progress = now;
        if (c.status != Status::ok)
          throw Error({.code = Errc::status,
                       .operation = "load",
                       .target = "queue",
                       .detail = std::string(to_string(c.status))});
      }
      feed(*queues[i], i);
    }
    if (now - progress > 3s) queues[0]->give_up(3s);
    t = device().telemetry();
    if (t.all_ones) break;
    celsius.push_back(std::max(t.core_celsius.value_or(0), t.hbm_celsius.value_or(0)));
    watts.push_back(t.power_watts.value_or(0));
    clock.push_back(t.clock_mhz.value_or(0));
    throttle |= t.throttle.value_or(0);
    fan = fan && t.fan_rpm.value_or(1) > 0;
    std::this_thread::sleep_until(Clock::now() + 500us);  // the load lies in the rings
  }
  for (auto& queue : queues) finish(*queue);
  if (celsius.empty()) return;  // all ones: judged by the fixture
  const double hottest = *std::ranges::max_element(celsius), most = *std::ranges::max_element(watts);
  const double slowest = *std::ranges::min_element(clock);
  metric("soak.hottest", hottest, "C");
  metric("soak.most_power", most, "W");
  metric("soak.slowest_clock", slowest, "MHz");
  if (t.limit_celsius && hottest > *t.limit_celsius)
    limit("over_limit", hottest, *t.limit_celsius, true, hottest, "hotter than its limit under load");
  if (t.power_cap_watts && most > *t.power_cap_watts * 1.005)
    limit("over_cap", most, *t.power_cap_watts, true, hottest, "power went above its cap");
  if (throttle) {
    const bool brownout = throttle & KZ_THROTTLE_BROWNOUT;
    limit(brownout ? "brownout" : "throttled", slowest, t.clock_max_mhz.value_or(0), true, hottest,
          "the device throttled, reasons " + std::to_string(throttle));
  } else if (t.clock_max_mhz && slowest < 0.9 * *t.clock_max_mhz) {
    limit("throttled", slowest, *t.clock_max_mhz, true, hottest,
          "the clock dropped under load without a reason given");
  }
  if (!fan) limit("fan_stopped", 0, 1, true, hottest, "the fan stands still under load");
}

}  // namespace kz::test
