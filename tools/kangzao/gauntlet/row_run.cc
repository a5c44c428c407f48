// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/row_run.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/softtpu_process.h"
#include "tools/kangzao/runner/process.h"

namespace kz::gauntlet {
namespace {

std::vector<std::string> command(const RunSpec& spec, const std::string& socket) {
  std::vector<std::string> argv = {program_directory() + "/kangzao",
                                   "run",
                                   "--device",
                                   "vfio-user:" + socket,
                                   "--destructive",
                                   "--retries",
                                   "0",
                                   "--profile",
                                   spec.profile,
                                   "--seed",
                                   std::to_string(spec.seed),
                                   "--output",
                                   spec.directory,
                                   "--json"};
  if (spec.stop_on_fail) argv.emplace_back("--stop-on-fail");
  for (const auto& id : spec.tests) {
    argv.insert(argv.end(), {"--filter", id, "--order", id});
  }
  return argv;
}

std::string last_line(const std::string& text) {
  auto end = text.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  auto begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

bool ended(const Journal& journal) {
  return std::ranges::any_of(journal.records, [](const auto& r) { return text_of(r, "type") == "run-end"; });
}

}  // namespace

RunResult run_once(const RunSpec& spec) {
  RunResult result;
  SoftTpuSpec device{.options = spec.device, .directory = {}, .extra = {}};
  if (!spec.fault.empty()) device.extra = {"--fault", spec.fault};
  std::optional<SoftTpuProcess> softtpu;
  try {
    softtpu.emplace(device);
  } catch (const Error& e) {
    if (spec.fault.empty() || e.code() == Errc::not_found) throw;
    result.unplantable = e.what();
    return result;
  }
  Captured run = run_captured(command(spec, softtpu->socket()), {}, std::chrono::minutes(20));
  if (!run.timed_out && WIFEXITED(run.status)) result.exit_status = WEXITSTATUS(run.status);
  try {
    result.journal = read_journal(spec.directory);
  } catch (const std::runtime_error& e) {
    throw Error({.code = Errc::io,
                 .operation = "run the tests of the gauntlet",
                 .target = spec.directory,
                 .detail = std::string(e.what()) + "; last output: " + last_line(run.output)});
  }
  if (!ended(*result.journal))
    result.broken_off = fmt::format("the run broke off: {}; last output: {}",
                                    run.timed_out ? "killed at its time limit" : describe_status(run.status),
                                    last_line(run.output));
  return result;
}

}  // namespace kz::gauntlet
