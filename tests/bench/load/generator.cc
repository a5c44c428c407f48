// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <sys/resource.h>

#include "shim/base/error.h"
#include "shim/load/engine.h"
#include "shim/load/report.h"
#include "tests/bench/load/measure.h"

namespace kz::bench {

double own_cpu_ns() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e9 +
         static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e3;
}

Cost run_generator(const std::string& file, double seconds) {
  std::string target = file.empty() ? "nop" : "file:" + file;
  load::Plan plan =
      load::parse_plan(fmt::format("[bench]\ntarget={}\nloop=closed\nbatch={}\nsize={}\ntime={}us\n", target,
                                   kBatch, kBlock, static_cast<int64_t>(seconds * 1e6)),
                       "bench");
  load::Ledger ledger(plan);
  double before = own_cpu_ns();
  load::run_process(
      plan, 0, ledger,
      [](const std::string& uri) -> Device& {
        throw Error({Errc::usage, "open", uri, "no device is measured here", "", 0});
      },
      load::Start::now);
  double cpu = own_cpu_ns() - before;
  auto sum = load::add_up(ledger);
  if (!sum->clean())
    throw Error(
        {Errc::io, "measure", target, sum->errors.empty() ? "operations failed" : sum->errors[0], "", 0});
  auto done = static_cast<double>(sum->all.completed);
  return {sum->seconds * 1e9 / done, cpu / done, ledger.io_workers()};
}

}  // namespace kz::bench
