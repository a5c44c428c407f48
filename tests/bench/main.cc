// SPDX-License-Identifier: GPL-2.0-or-later
// kz-bench: what the chain costs, beside a limit measured in the same run. Prints one line a bar and exits 1
// when one is short. Device: KANGZAO_DEVICE, by default a private software TPU.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "shim/base/error.h"
#include "tests/bench/bars.h"

namespace kz::bench {

static std::unique_ptr<Device>& slot() {
  static std::unique_ptr<Device> device;
  return device;
}

Device& device() { return *slot(); }

namespace {

// Whether a benchmark did not run: the field's name depends on the library's version (1.8).
template <typename Run>
bool failed(const Run& run) {
  if constexpr (requires { run.error_occurred; })
    return run.error_occurred;
  else
    return static_cast<bool>(run.skipped);
}

// Keeps the fastest repetition of each benchmark: the one least disturbed by the machine.
class BestOf : public benchmark::ConsoleReporter {
 public:
  struct Best {
    double seconds = 0;
    double rate = 0;
  };

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || failed(run)) continue;
      Best& best =
          best_[run.run_name.function_name + (run.run_name.args.empty() ? "" : "/" + run.run_name.args)];
      double seconds = run.real_accumulated_time / static_cast<double>(run.iterations);
      if (best.seconds == 0 || seconds < best.seconds) best.seconds = seconds;
      for (const char* counter : {"bytes_per_second", "items_per_second"})
        if (auto it = run.counters.find(counter); it != run.counters.end())
          best.rate = std::max(best.rate, it->second.value);
    }
  }
  const Best* find(const std::string& name) const {
    auto it = best_.find(name);
    return it == best_.end() ? nullptr : &it->second;
  }

 private:
  std::map<std::string, Best> best_;
};

// Returns false when the bar is short or one of its benchmarks did not run.
bool print(const Bar& bar, const BestOf& results) {
  const auto* subject = results.find(bar.subject);
  const auto* reference = results.find(bar.reference);
  if (subject == nullptr || reference == nullptr) {
    fmt::print("bar {} - {}= {} short (not measured)\n", bar.name, bar.op, bar.limit);
    return false;
  }
  double value = bar.by_time ? subject->seconds / reference->seconds : subject->rate / reference->rate;
  bool ok = bar.op == '>' ? value >= bar.limit : value <= bar.limit;
  fmt::print("bar {} {:.3f} {}= {} {}\n", bar.name, value, bar.op, bar.limit, ok ? "ok" : "short");
  return ok;
}

int run(int argc, char** argv) {
  std::vector<std::string> args(argv, argv + argc);
  // Defaults first: what the user gives comes later and wins.
  args.insert(args.begin() + 1, {"--benchmark_repetitions=7", "--benchmark_enable_random_interleaving=true",
                                 "--benchmark_min_time=0.15"});
  bool filtered = false;
  std::vector<char*> raw;
  for (auto& a : args) {
    filtered |= a.starts_with("--benchmark_filter");
    raw.push_back(a.data());
  }
  int n = static_cast<int>(raw.size());
  benchmark::Initialize(&n, raw.data());
  if (benchmark::ReportUnrecognizedArguments(n, raw.data())) return 2;

  const char* uri = std::getenv("KANGZAO_DEVICE");
  slot() = open_device(uri != nullptr ? uri : "softtpu:");
  std::vector<Bar> bars;
  for (auto part : {register_roundtrip(), register_dma(), register_matmul()})
    bars.insert(bars.end(), part.begin(), part.end());
  BestOf results;
  benchmark::RunSpecifiedBenchmarks(&results);
  bool ok = true;
  for (const Bar& bar : bars) {
    if (filtered && results.find(bar.subject) == nullptr) continue;
    ok &= print(bar, results);
  }
  slot().reset();
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace kz::bench

int main(int argc, char** argv) {
  try {
    return kz::bench::run(argc, argv);
  } catch (const kz::Error& e) {
    fmt::print(stderr, "kz-bench: {}\n", e.what());
    return 4;
  }
}
