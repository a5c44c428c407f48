// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/harness/test.h"
#include "tests/kmod/resources.h"
#include "tests/kmod/slope.h"

namespace kz::test {
namespace {

constexpr uint64_t warm_up = 4, fewest = 16, most_looks = 120;
// Objects or KiB a cycle: a leak in every second cycle. What is counted in bytes is compared in the same way.
constexpr double least_slope = 0.5;

// A cache that is not there yet holds nothing.
class Collector {
 public:
  void look() {
    for (auto& [name, n] : leak_counts(look_at_kernel())) {
      auto& values = series_[name];
      values.resize(looks_, 0);
      values.push_back(n);
    }
    ++looks_;
  }
  const Series& series() {
    for (auto& [name, values] : series_) values.resize(looks_, 0);
    return series_;
  }

 private:
  Series series_;
  size_t looks_ = 0;
};

Series collect(uint64_t cycles, const std::function<void()>& cycle) {
  Collector collector;
  const uint64_t stride = std::max<uint64_t>(1, cycles / most_looks);
  for (uint64_t i = 0; i < cycles; ++i) {
    cycle();
    if ((i + 1) % stride == 0) collector.look();
  }
  return collector.series();
}

Series only(const Series& all, const std::vector<Growth>& suspects) {
  Series out;
  for (auto& s : suspects)
    if (auto it = all.find(s.name); it != all.end()) out.insert(*it);
  return out;
}

}  // namespace

void judge_growth(const std::string& name, uint64_t cycles, const std::function<void()>& cycle) {
  cycles = std::max(cycles, fewest);
  const double stride = static_cast<double>(std::max<uint64_t>(1, cycles / most_looks));
  for (uint64_t i = 0; i < warm_up; ++i) cycle();
  const Series first = collect(cycles, cycle);
  uint64_t done = warm_up + cycles;
  auto suspects = growing(first, least_slope * stride);
  for (auto& field : {"meminfo SUnreclaim (KiB)", "memory in use by the kernel (KiB)"})
    if (auto it = first.find(field); it != first.end())
      metric(fmt::format("kmod.{}.{}_per_cycle", name, field), trend_of(it->second).slope / stride, "KiB");
  if (!suspects.empty()) {
    const Series again = collect(cycles, cycle);
    done += cycles;
    suspects = growing(only(again, suspects), least_slope * stride);
  }
  if (!suspects.empty()) {
    const Series idle = collect(std::min<uint64_t>(cycles, 24) * static_cast<uint64_t>(stride), [] {});
    std::erase_if(suspects, [&](const Growth& g) {
      auto it = idle.find(g.name);
      return it != idle.end() && trend_of(it->second).high >= g.trend.low;
    });
  }
  for (auto& g : suspects) {
    evidence(ev::driver, {{"what", "leak"},
                          {"name", g.name},
                          {"per_cycle", g.trend.slope / stride},
                          {"cycles", done},
                          {"p", g.trend.p_rising}});
    ADD_FAILURE() << fmt::format("{} grows by {:.3g} a cycle (95%: {:.3g} to {:.3g}), over {} cycles", g.name,
                                 g.trend.slope / stride, g.trend.low / stride, g.trend.high / stride, done);
  }
  metric(fmt::format("kmod.{}.cycles", name), static_cast<double>(done), "cycles");
  metric(fmt::format("kmod.{}.failing_cycles_excluded_above", name), 100 * excluded_rate(done), "%");
}

}  // namespace kz::test
