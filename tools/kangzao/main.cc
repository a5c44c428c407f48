// SPDX-License-Identifier: GPL-2.0-or-later
// kangzao: the command line. Each command is in its own file.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "shim/base/text.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/commands.h"
#include "tools/kangzao/runner/run.h"
#include "tools/kangzao/version.h"

namespace {

enum ExitCode { usage = 2, host_trouble = 4, cannot_test = 125, interrupted = 130 };

int exit_of(kz::Errc code) {
  switch (code) {
    case kz::Errc::usage:
      return usage;
    case kz::Errc::bad_data:
    case kz::Errc::io:
      return host_trouble;
    default:
      return cannot_test;
  }
}

void complain(const std::exception& e) { kz::say(fmt::format("kangzao: {}\n", e.what())); }

int guarded(int argc, char** argv) {
  CLI::App app{"Proves or disproves that a PCIe AI accelerator, its firmware and its driver hold up."};
  app.set_version_flag("--version", std::string("kangzao ") + kz::version);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  kangzao run                               quick profile on a software TPU\n"
      "  kangzao ls --all                          what this machine has\n"
      "  kangzao load docs/load-examples/mixed.load  load a device and account for every command\n"
      "  kangzao run --device pci:0000:01:00.0     what can be said of a real device");
  int status = 0;
  for (auto add : {kz::add_ls, kz::add_list, kz::add_run, kz::add_resume, kz::add_report, kz::add_compare,
                   kz::add_gauntlet, kz::add_load, kz::add_lab, kz::add_changes, kz::add_pci, kz::add_internal})
    add(app, status);
  std::vector<std::string> known;
  for (auto* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::ranges::find(known, argv[1]) == known.end()) {
    auto near = kz::near_matches(argv[1], known);
    throw kz::Error({kz::Errc::usage, "read command", fmt::format("'{}'", argv[1]),
                     "there is no such command",
                     near.empty() ? "see kangzao --help" : fmt::format("did you mean {}?", near.front()), 0});
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    complain(e);
    return usage;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  kz::occupy_standard_fds();
  ::signal(SIGCHLD, SIG_DFL);  // a caller who ignores it would hide from us how our children end
  try {
    int status = guarded(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    kz::say("kangzao: standard output could not be written\n");
    return status == 0 ? int{host_trouble} : status;
  } catch (const kz::Error& e) {
    complain(e);
    return kz::told_to_stop() ? interrupted : exit_of(e.code());
  } catch (const std::exception& e) {  // JournalError and what the host throws at us
    complain(e);
    return host_trouble;
  }
}
