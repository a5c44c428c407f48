// SPDX-License-Identifier: GPL-2.0-or-later
// One steady stream of equal commands: its times neither creep nor jump, compared with what this host does to
// a thread of its own at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "shim/base/fd.h"
#include "shim/base/host_load.h"
#include "tests/harness/stats.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr double kLatencySeconds = 8;
constexpr uint64_t kLen = uint64_t{1} << 20;
constexpr int kBlocks = 8;
constexpr double kMostBusy = 0.25;  // of the commands
// A thread of ours that waits so long for a processor says that something takes them which this kernel does
// not see: in a virtual machine, the host's other work. It also delays the device's model and its interrupts,
// at other moments.
constexpr double kStallUs = 10000;
constexpr double kWorstRate = 5e-4;  // of jumps among the commands

double us(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

// The host's own measure: wake a thread, let it read as much memory as the command, and be woken by it.
class Control {
 public:
  Control()
      : data_(kLen, std::byte{1}),
        there_(make_eventfd(false)),
        back_(make_eventfd(false)),
        thread_([this] { run(); }) {}
  ~Control() {
    stop_ = true;
    signal_eventfd(there_.get());
    thread_.join();
  }
  double once() {
    const auto start = Clock::now();
    signal_eventfd(there_.get());
    drain_eventfd(back_.get());
    return us(Clock::now() - start);
  }

 private:
  void run() {
    for (;;) {
      drain_eventfd(there_.get());
      if (stop_) return;
      uint64_t sum = 0;
      for (size_t i = 0; i < data_.size(); i += 8) sum += static_cast<uint64_t>(data_[i]);
      sum_ = sum_ + sum;
      signal_eventfd(back_.get());
    }
  }

  std::vector<std::byte> data_;
  volatile uint64_t sum_ = 0;
  std::atomic<bool> stop_{false};
  Fd there_, back_;
  std::thread thread_;
};

struct Times {
  std::vector<double> device, host;
  std::vector<bool> busy;  // the host, while the command ran
  size_t stalled = 0;      // commands in whose time the control waited long
  double busy_share() const {
    return static_cast<double>(std::ranges::count(busy, true)) / static_cast<double>(device.size());
  }
};

// What counts as a jump, in us above the median of its own kind: the same delay for the device and for the
// control beside it, whose own work may take longer.
double jump_of(const std::vector<double>& device) {
  const double m = median(device);
  return std::max(2000.0, 8 * m) - m;
}

// Jumps far above the median, and in how many eighths of the run there are some. Those in a time in which
// the host's processors were fought over are counted apart.
struct Jumps {
  uint64_t count = 0;
  uint64_t excused = 0;
  int blocks = 0;
  double largest = 0;
};

Jumps find_jumps(const std::vector<double>& times, double jump, const std::vector<bool>& busy = {}) {
  Jumps jumps;
  const double limit = median(times) + jump;
  bool in_block[kBlocks] = {};
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i] <= limit) continue;
    if (i < busy.size() && busy[i]) {
      ++jumps.excused;
      continue;
    }
    ++jumps.count;
    in_block[i * kBlocks / times.size()] = true;
    jumps.largest = std::max(jumps.largest, times[i]);
  }
  jumps.blocks = static_cast<int>(std::count(std::begin(in_block), std::end(in_block), true));
  return jumps;
}

// Whether the device's commands jump all through the run, at a rate that a busy host's scheduler alone does
// not show.
struct Tail {
  Jumps device, host;
  double rate = 0;  // of the commands
  bool seen = false;
};

Tail tail_of(const Times& t) {
  const double jump = jump_of(t.device);
  Tail tail{find_jumps(t.device, jump, t.busy), find_jumps(t.host, jump)};
  tail.rate = static_cast<double>(tail.device.count) / static_cast<double>(t.device.size());
  tail.seen = tail.device.blocks >= kBlocks - 2 && tail.device.count >= 3 * tail.host.count + 6 &&
              tail.rate >= kWorstRate;
  return tail;
}

void report_tail(const Tail& tail, const Times& t) {
  const double m = median(t.device);
  evidence(ev::slow, {{"what", "tail"},
                      {"value", tail.device.largest},
                      {"reference", m},
                      {"ratio", tail.device.largest / m},
                      {"rate", tail.rate},
                      {"host_jumps", tail.host.count}});
  ADD_FAILURE() << tail.device.count << " of " << t.device.size() << " commands took up to "
                << tail.device.largest << " us, the median is " << m;
}

// Lower quartiles of `windows` equal parts: what a busy host adds stays out.
std::vector<double> quartiles(const std::vector<double>& times, size_t windows) {
  std::vector<double> out;
  const size_t n = times.size() / windows;
  for (size_t w = 0; w < windows; ++w)
    out.push_back(quantile(
        {times.begin() + static_cast<ptrdiff_t>(w * n), times.begin() + static_cast<ptrdiff_t>((w + 1) * n)},
        0.25));
  return out;
}

// How a command's time went over a stretch: in itself and beside the host, as shares of where it `started`.
struct Trend {
  double started, started_beside;
  double rise, rise_beside;
  bool rising = false;
};

// `first`: the stretch before this one, against whose start the rise is measured. Nothing: too few commands.
std::optional<Trend> trend_of(const Times& t, const Trend* first = nullptr) {
  constexpr size_t kWindows = 32;
  if (t.device.size() < kWindows * 20) return std::nullopt;
  const auto device = quartiles(t.device, kWindows), host = quartiles(t.host, kWindows);
  std::vector<double> at(kWindows), relative(kWindows);
  for (size_t w = 0; w < kWindows; ++w)
    at[w] = static_cast<double>(w) / (kWindows - 1), relative[w] = device[w] / std::max(host[w], 1.0);
  const Slope own = theil_sen(at, device), beside = theil_sen(at, relative);
  Trend trend{
      .started = first ? first->started : median({device.begin(), device.begin() + 4}),
      .started_beside = first ? first->started_beside : median({relative.begin(), relative.begin() + 4})};
  trend.rise = own.slope / trend.started, trend.rise_beside = beside.slope / trend.started_beside;
  // Over the whole stretch, in itself and beside the host, and not just until something was warm.
  trend.rising = own.rising() && beside.rising() && own.low / trend.started >= 0.08 &&
                 beside.low / trend.started_beside >= 0.05 &&
                 climbs_without_end(at, device, 0.1 * trend.started);
  return trend;
}

void report_trend(const Trend& first, const Trend* second) {
  const double rise = first.rise + (second ? second->rise : 0);
  evidence(ev::slow, {{"what", "trend"},
                      {"value", first.started * (1 + rise)},
                      {"reference", first.started},
                      {"ratio", 1 + rise}});
  ADD_FAILURE() << "the time of a command rose by " << 100 * rise << "% over the run and goes on rising";
}

// What creeps goes on creeping, and what jumps goes on jumping: either is a finding when a second stretch, as
// long as the first, shows it as well. Once is not enough, since a hypervisor can move a processor or its
// caches, or an emulator be at work for itself, and let nobody inside see it.
template <class Measure>
void judge_times(const Times& t, bool with_trend, Measure&& measure_again) {
  const Tail tail = tail_of(t);
  metric("soak.jumps.device", static_cast<double>(tail.device.count), "commands");
  metric("soak.jumps.excused", static_cast<double>(tail.device.excused), "commands");
  metric("soak.jumps.host", static_cast<double>(tail.host.count), "wake-ups");
  const auto trend = with_trend ? trend_of(t) : std::nullopt;
  if (trend) {
    metric("soak.latency_rise", trend->rise, "ratio");
    metric("soak.latency_rise_beside_host", trend->rise_beside, "ratio");
  }
  const bool rising = trend && trend->rising;
  if (!tail.seen && !rising) return;
  const Times again = measure_again();
  if (tail.seen) {
    const Tail second = tail_of(again);
    metric("soak.jumps.device.again", static_cast<double>(second.device.count), "commands");
    metric("soak.jumps.host.again", static_cast<double>(second.host.count), "wake-ups");
    if (second.seen) report_tail(tail, t);
  }
  if (!rising) return;
  if (again.busy_share() > kMostBusy) {
    if (::testing::Test::HasFailure()) return;
    skip(fmt::format("the time of a command rose by {:.0f}%, but the host was too busy to see it go on",
                     100 * trend->rise));
  }
  const auto second = trend_of(again, &*trend);
  if (second) {
    metric("soak.latency_rise.again", second->rise, "ratio");
    metric("soak.latency_rise_beside_host.again", second->rise_beside, "ratio");
  }
  if (!second || second->rising) report_trend(*trend, second ? &*second : nullptr);
}

}  // namespace

KZ_TEST(soak, latency,
        {.meaning = "a steady stream of equal commands neither creeps nor jumps more than the host itself",
         .level = 3,
         .needs = {Cap::hbm_alloc, Cap::queues},
         .limit = 40s,
         .scaled = true}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 2});
  auto hbm = context->alloc({kLen});
  Control control;
  HostLoad load;
  run_good(*queue, {cmd::Fill{at(hbm->addr()), kLen, 1}});
  const auto measure = [&] {
    Times t;
    double worst_wait = 0;  // of the control, since the load was last read
    const auto start = Clock::now();
    while (us(Clock::now() - start) < 1e6 * kLatencySeconds * scale()) {
      const Completion done = run_good(*queue, {cmd::Fill{at(hbm->addr()), kLen, t.device.size()}});
      t.device.push_back(us(done.seen - done.submitted));
      t.host.push_back(control.once());
      worst_wait = std::max(worst_wait, t.host.back());
      if (const auto share = load.share()) {
        if (worst_wait >= kStallUs) t.stalled += t.device.size() - t.busy.size();
        t.busy.resize(t.device.size(), *share >= HostLoad::busy || worst_wait >= kStallUs);
        worst_wait = 0;
      }
    }
    return t;
  };
  const Times t = measure();
  report_summary("soak.fill_1mib", summarize(t.device), "us");
  report_summary("soak.host", summarize(t.host), "us");
  const double busy = t.busy_share();
  metric("soak.host_busy", busy, "ratio");
  const double stalled = static_cast<double>(t.stalled) / static_cast<double>(t.device.size());
  metric("soak.host_stalled", stalled, "ratio");
  if (stalled > kMostBusy)
    skip(
        fmt::format("the host was too busy to judge delays: in {:.0f}% of the time a thread of ours waited "
                    "{:.0f} ms or more "
                    "for a processor",
                    100 * stalled, kStallUs / 1000));
  judge_times(t, busy <= kMostBusy, measure);
  if (busy <= kMostBusy) return;
  // What was seen in the quiet rest stands; but creeping and rare delays may have hidden in what was busy.
  if (!::testing::Test::HasFailure())
    skip(fmt::format(
        "the host was too busy to judge delays: work waited for a processor in {:.0f}% of the time",
        100 * busy));
}

}  // namespace kz::test
