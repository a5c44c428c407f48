// SPDX-License-Identifier: GPL-2.0-or-later
// fio and its t/io_uring, given the same work.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "tests/bench/load/measure.h"
#include "tools/kangzao/runner/process.h"

namespace kz::bench {
namespace {

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
  auto text = output_of({program,
                         "--name=peer",
                         "--filename=" + file,
                         "--readonly",
                         "--rw=randread",
                         fmt::format("--bs={}", kBlock),
                         "--ioengine=io_uring",
                         "--fixedbufs=1",
                         "--registerfiles=1",
                         fmt::format("--iodepth={}", kBatch),
                         fmt::format("--iodepth_batch_submit={}", kBatch),
                         fmt::format("--iodepth_batch_complete_min={}", kBatch),
                         fmt::format("--iodepth_batch_complete_max={}", kBatch),
                         "--direct=0",
                         "--invalidate=0",
                         "--norandommap",
                         "--random_generator=lfsr",
                         "--time_based",
                         fmt::format("--runtime={}", seconds),
                         "--thread",
                         "--output-format=json"},
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

namespace {

// "IOPS=2.95M, BW=11.51GiB/s, IOS/call=32/32", once a second: the operations since the line before. 0:
// another line.
double operations_in(const std::string& line) {
  if (!line.starts_with("IOPS=")) return 0;
  char* end = nullptr;
  double n = std::strtod(line.c_str() + 5, &end);
  return n * (*end == 'M' ? 1e6 : *end == 'K' ? 1e3 : 1);
}

double cpu_ns_of(pid_t pid) {
  clockid_t clock;
  timespec t{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

}  // namespace

// Its processor time is read whenever it prints a line, so that both are of the same second or so.
Cost run_t_io_uring(const std::string& program, const std::string& file, int seconds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("create", "pipe");
  Fd out(ends[0]), in(ends[1]);
  pid_t pid = spawn({"/usr/bin/stdbuf", "-oL", program, "-p0", "-O0", "-X1", fmt::format("-d{}", kBatch),
                     fmt::format("-s{}", kBatch), fmt::format("-c{}", kBatch), fmt::format("-b{}", kBlock),
                     fmt::format("-r{}", seconds + 2), file},
                    {}, {}, in.get());
  in.reset();
  double done = 0, cpu_before = 0, cpu = 0;
  auto start = Clock::now(), last = start;
  std::string line, all;
  int lines = 0;
  for (char c; lines < seconds + 1 && ::read(out.get(), &c, 1) == 1;) {
    if (c != '\n') {
      line += c;
      continue;
    }
    double n = operations_in(line);
    all += std::exchange(line, "") + "; ";
    if (n == 0) continue;
    last = Clock::now();
    // The first line's second began with its setting up.
    if (++lines == 1) {
      cpu_before = cpu_ns_of(pid);
      start = last;
      continue;
    }
    done += n;
    cpu = cpu_ns_of(pid) - cpu_before;
  }
  ::kill(pid, SIGTERM);
  int status = 0;
  if (!wait_for_child(pid, status, Deadline(5s))) ::kill(pid, SIGKILL);
  if (!(done > 0) || !(cpu > 0))
    throw Error({Errc::protocol, "read", program, "it named no IOPS: " + all, "", 0});
  return {std::chrono::duration<double, std::nano>(last - start).count() / done, cpu / done};
}

}  // namespace kz::bench
