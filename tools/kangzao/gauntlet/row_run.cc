// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/row_run.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/softtpu_process.h"
#include "shim/vfio_user/socket.h"
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

bool ended(const Journal& journal) {
  return std::ranges::any_of(journal.records, [](const auto& r) { return text_of(r, "type") == "run-end"; });
}

// Plants over the control socket, before any client: a command line would be for all to read. Returns why the
// device refused.
std::string plant(const std::string& control, const nlohmann::json& fault) {
  const Deadline deadline(std::chrono::seconds(10));
  Fd socket = vfio_user::connect_to(control, deadline);
  const std::string request = nlohmann::json{{"cmd", "inject"}, {"fault", fault}}.dump() + "\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size()))
    throw_errno("plant a fault through", control);
  std::string reply;
  while (!reply.ends_with('\n')) {
    pollfd readable{socket.get(), POLLIN, 0};
    char buffer[4096];
    ssize_t n = -1;
    if (::poll(&readable, 1, static_cast<int>(deadline.left() / std::chrono::milliseconds(1))) > 0)
      n = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (n <= 0) throw Error({Errc::timeout, "plant a fault through", control, "softtpu did not reply", {}});
    reply.append(buffer, static_cast<size_t>(n));
  }
  return text_of(nlohmann::json::parse(reply), "error");
}

}  // namespace

RunResult run_once(const RunSpec& spec, const std::function<bool()>& stop) {
  RunResult result;
  SoftTpuProcess softtpu({.options = spec.device, .directory = {}, .extra = {}});
  if (!spec.fault.is_null()) result.unplantable = plant(softtpu.control(), spec.fault);
  if (!result.unplantable.empty()) return result;
  Captured run = run_captured(command(spec, softtpu.socket()), {}, std::chrono::minutes(20),
                              {.may_kill = true, .stop = stop});
  if (!run.timed_out && WIFEXITED(run.status)) result.exit_status = WEXITSTATUS(run.status);
  if (stop()) return result;
  try {
    result.journal = read_journal(spec.directory);
  } catch (const std::runtime_error& e) {
    throw Error({.code = Errc::io,
                 .operation = "run the tests of the gauntlet",
                 .target = spec.directory,
                 .detail = std::string(e.what()) + "; last words: " + last_line(run.errors)});
  }
  if (!ended(*result.journal))
    result.broken_off = fmt::format("the run broke off: {}; last words: {}",
                                    run.timed_out ? "killed at its time limit" : describe_status(run.status),
                                    last_line(run.errors));
  return result;
}

}  // namespace kz::gauntlet
