// SPDX-License-Identifier: GPL-2.0-or-later
// fio and its t/io_uring, given the same work.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "shim/base/error.h"
#include "tests/bench/load/measure.h"
#include "tools/kangzao/runner/process.h"

namespace kz::bench {
namespace {

double children_cpu_ns() {
  rusage u{};
  ::getrusage(RUSAGE_CHILDREN, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e9 +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e3;
}

std::string output_of(const std::vector<std::string>& argv, int seconds) {
  Captured c = run_captured(argv, {}, std::chrono::seconds(seconds + 30));
  if (!c.timed_out && WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0) return c.output;
  throw Error({Errc::io, "run", argv[0],
               fmt::format("{}: {}", c.timed_out ? "it did not end" : describe_status(c.status),
                           last_line(c.errors.empty() ? c.output : c.errors)),
               "", 0});
}

}  // namespace

Cost run_fio(const std::string& program, const std::string& file, int seconds) {
  auto text = output_of({program, "--name=peer", "--filename=" + file, "--readonly", "--rw=randread",
                         fmt::format("--bs={}", kBlock), "--ioengine=io_uring", "--fixedbufs=1", "--registerfiles=1",
                         fmt::format("--iodepth={}", kBatch), fmt::format("--iodepth_batch_submit={}", kBatch),
                         fmt::format("--iodepth_batch_complete_min={}", kBatch),
                         fmt::format("--iodepth_batch_complete_max={}", kBatch), "--direct=0", "--invalidate=0",
                         "--norandommap", "--random_generator=lfsr", "--time_based",
                         fmt::format("--runtime={}", seconds), "--thread", "--output-format=json"},
                        seconds);
  auto brace = text.find('{');
  auto doc = nlohmann::json::parse(brace == std::string::npos ? text : text.substr(brace), nullptr, false);
  if (doc.is_discarded() || !doc.contains("jobs"))
    throw Error({Errc::protocol, "read", program, "its result is no JSON document", "", 0});
  const auto& job = doc["jobs"][0];
  double iops = job["read"]["iops"].get<double>();
  double busy = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100;
  if (!(iops > 0) || !(busy > 0)) throw Error({Errc::protocol, "read", program, "it did nothing", "", 0});
  return {1e9 / iops, busy * 1e9 / iops};
}

// Prints "IOPS=2.95M, BW=11.51GiB/s, IOS/call=32/32" every second.
Cost run_t_io_uring(const std::string& program, const std::string& file, int seconds) {
  double before = children_cpu_ns();
  auto start = Clock::now();
  auto text = output_of({program, "-p0", "-O0", "-X1", fmt::format("-d{}", kBatch), fmt::format("-s{}", kBatch),
                         fmt::format("-c{}", kBatch), fmt::format("-b{}", kBlock), fmt::format("-r{}", seconds), file},
                        seconds);
  double wall = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  double busy = (children_cpu_ns() - before) / wall;
  double sum = 0;
  int n = 0;
  for (size_t at = 0; (at = text.find("IOPS=", at)) != std::string::npos; ++n) {
    // The last line, "Maximum IOPS=", repeats one of them.
    if (at >= 8 && text.compare(at - 8, 8, "Maximum ") == 0) break;
    char* end = nullptr;
    double iops = std::strtod(text.c_str() + at + 5, &end);
    sum += iops * (*end == 'M' ? 1e6 : *end == 'K' ? 1e3 : 1);
    at += 5;
  }
  if (n == 0 || !(sum > 0)) throw Error({Errc::protocol, "read", program, "it named no IOPS", "", 0});
  double iops = sum / n;
  return {1e9 / iops, busy * 1e9 / iops};
}

}  // namespace kz::bench
