// SPDX-License-Identifier: GPL-2.0-or-later
// kz-bench-load: rounds in which all take their turn, a bar for the median of each round's comparison. Exits
// 1 when one is short or could not be measured.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "tests/bench/load/measure.h"

namespace kz::bench {
namespace {

namespace fs = std::filesystem;

// Small enough for the processor's own caches: the memory's speed is shared with neighbours.
constexpr uint64_t file_bytes = 1 << 20;
constexpr double over_t_io_uring_ns = 40, over_fio_ratio = 1.4, over_bare_nop_ns = 25;

double median_of(std::vector<double> v) {
  std::ranges::sort(v);
  size_t n = v.size();
  return n == 0 ? 0 : n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

fs::path cache_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache != '\0') return fs::path(cache) / "kangzao/bench";
  return fs::path(home != nullptr ? home : "/tmp") / ".cache/kangzao/bench";
}

// Written and read once, so that it is in the page cache.
std::string make_cached_file(std::string path) {
  if (path.empty()) {
    fs::create_directories(cache_folder());
    path = cache_folder() / "load.data";
  }
  std::error_code ec;
  if (fs::file_size(path, ec) != file_bytes || ec) {
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    std::string piece(1 << 20, 'k');
    for (uint64_t n = 0; n < file_bytes; n += piece.size()) out << piece;
    out.close();
    if (!out) throw Error({Errc::io, "write", path, "1 MiB for the measurement", "make room", 0});
  }
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("open", path);
  std::string piece(1 << 20, '\0');
  while (::read(fd.get(), piece.data(), piece.size()) > 0) continue;
  return path;
}

struct Series {
  std::vector<double> cpu, wall;
  uint64_t io_workers = 0;
  std::string failed;
  void add(const Cost& c) {
    cpu.push_back(c.cpu_ns);
    wall.push_back(c.wall_ns);
    io_workers = std::max(io_workers, c.io_workers);
  }
};

using Contender = std::pair<std::string, std::function<Cost()>>;

std::map<std::string, Series> measure(const std::vector<Contender>& all, int rounds) {
  std::map<std::string, Series> results;
  for (int r = 0; r < rounds; ++r)
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, run] = all[(i + static_cast<size_t>(r)) % all.size()];  // none is always first
      Series& s = results[name];
      if (!s.failed.empty()) continue;
      try {
        s.add(run());
      } catch (const Error& e) {
        s.failed = e.what();
      }
    }
  return results;
}

// The median of what `compare` makes of the two in each round.
template <class Compare>
bool print_bar(const char* name, const Series& a, const Series& b, char op, double limit, Compare compare) {
  if (!a.failed.empty() || !b.failed.empty() || a.cpu.empty() || b.cpu.empty()) {
    const std::string& why = !a.failed.empty() ? a.failed : b.failed;
    fmt::print("bar {} - {}= {} short (not measured: {})\n", name, op, limit, why);
    return false;
  }
  std::vector<double> values;
  for (size_t i = 0; i < std::min(a.cpu.size(), b.cpu.size()); ++i)
    values.push_back(compare(a.cpu[i], b.cpu[i]));
  double value = median_of(values);
  bool ok = op == '>' ? value >= limit : value <= limit;
  fmt::print("bar {} {:.2f} {}= {} {}\n", name, value, op, limit, ok ? "ok" : "short");
  return ok;
}

int run_bench(const std::string& given_file, const std::string& fio, const std::string& t_io_uring,
              const std::string& why_not, int rounds) {
  std::string file = make_cached_file(given_file);
  std::vector<Contender> all = {
      {"generator", [&] { return run_generator(file, 1); }},
      {"bare loop", [&] { return run_bare_loop(file, 1); }},
      {"fio", [&] { return run_fio(fio, file, 1); }},
      {"generator nop", [&] { return run_generator("", 0.5); }},
      {"bare nop", [&] { return run_bare_loop("", 0.5); }},
  };
  if (!t_io_uring.empty())
    all.insert(all.begin() + 1, {"t/io_uring", [&] { return run_t_io_uring(t_io_uring, file, 1); }});
  auto results = measure(all, rounds);
  if (t_io_uring.empty())
    results["t/io_uring"].failed = why_not.empty() ? "name the program with --t-io-uring" : why_not;

  fmt::print("{} rounds, blocks of {} from {} in the page cache, {} at once; ns an operation, medians\n",
             rounds, kBlock, file, kBatch);
  for (const auto& [name, s] : results)
    if (s.failed.empty())
      fmt::print("  {:<14} {:>8.1f} of processor time, {:>8.1f} by the clock\n", name, median_of(s.cpu),
                 median_of(s.wall));
  auto difference = [](double a, double b) { return a - b; };
  auto ratio = [](double a, double b) { return b / a; };  // of operations a second
  bool ok = print_bar("read_over_t_io_uring_ns", results["generator"], results["t/io_uring"], '<',
                      over_t_io_uring_ns, difference);
  ok &= print_bar("read_rate_over_fio", results["generator"], results["fio"], '>', over_fio_ratio, ratio);
  ok &= print_bar("nop_over_bare_loop_ns", results["generator nop"], results["bare nop"], '<',
                  over_bare_nop_ns, difference);
  uint64_t workers = std::max(results["generator"].io_workers, results["generator nop"].io_workers);
  fmt::print("bar io_uring_worker_threads {} <= 0 {}\n", workers, workers == 0 ? "ok" : "short");
  return ok && workers == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kz::bench

int main(int argc, char** argv) {
  CLI::App app{"What the load generator costs beside fio, t/io_uring and a bare liburing loop."};
  std::string file, fio = "/usr/bin/fio", t_io_uring, why_not;
  int rounds = 11;
  app.add_option("--file", file, "file to read, made 1 MiB long (default: one in the user's cache)");
  app.add_option("--fio", fio, "fio's program")->capture_default_str();
  app.add_option("--t-io-uring", t_io_uring, "the program t/io_uring of fio's sources");
  app.add_option("--t-io-uring-missing", why_not, "why it could not be had, for the report");
  app.add_option("--rounds", rounds, "how often each takes its turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return kz::bench::run_bench(file, fio, t_io_uring, why_not, rounds);
  } catch (const kz::Error& e) {
    fmt::print(stderr, "kz-bench-load: {}\n", e.what());
    return 4;
  }
}
