// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <unistd.h>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "shim/base/units.h"
#include "tools/kangzao/commands.h"
#include "tools/kangzao/gauntlet/gauntlet.h"
#include "tools/kangzao/gauntlet/lab_gauntlet.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/numbers.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"

namespace kz {
namespace {

struct GauntletArgs {
  gauntlet::GauntletOptions options;
  std::string output;
  bool json = false, lab = false, list = false;
  std::vector<std::string> kernels = {"stable-1", "stable-1-debug"};
};

int list_plan(const GauntletArgs& a) {
  for (auto row : gauntlet::select_rows(a.options.rows)) {
    auto p = gauntlet::plan_row(row, a.options.vary, a.options.hbm);
    fmt::print("{:4} {:<50} {:<24} {}\n", p.id, softtpu::spec(row).title, p.expected,
               p.fault["params"].dump());
  }
  return 0;
}

void write_result(const GauntletArgs& a, const gauntlet::GauntletResult& result) {
  write_output(a.json ? gauntlet::to_json(result).dump(2) + "\n" : gauntlet::to_terminal(result), a.output);
}

void progress(const std::string& line) { say(line + "\n"); }

void check_output(const std::string& file) {
  if (!file.empty() && access(file.c_str(), F_OK) == 0)  // said now, not after an hour
    throw Error({Errc::io, "create", file, "it is there already", "name a file that is not", 0});
}

int lab_command(const GauntletArgs& a) {
  gauntlet::LabGauntlet gauntlet(a.options, a.kernels, progress);
  if (a.list) {
    for (auto& [bug, argument] : gauntlet.plan())
      fmt::print("{:4} {:<50} {:<24} {}\n", bug.id, bug.title, bug.cls,
                 fmt::format("{}{}", bug.last == 0 ? "" : std::to_string(argument),
                             bug.needs_debug ? " (debug kernel)" : ""));
    return 0;
  }
  check_output(a.output);
  become_subreaper();
  catch_signals();
  auto result = gauntlet.run([] { return told_to_stop(); });
  write_result(a, result);
  return told_to_stop() ? 130 : result.exit_code();
}

int gauntlet_command(GauntletArgs& a) {
  if (a.lab) return lab_command(a);
  parse_bytes(a.options.hbm);
  if (a.list) return list_plan(a);
  check_output(a.output);
  become_subreaper();
  catch_signals();
  gauntlet::Gauntlet gauntlet(a.options, progress);
  auto result = gauntlet.run([] { return told_to_stop(); });
  write_result(a, result);
  return told_to_stop() ? 130 : result.exit_code();
}

void add_options(CLI::App& sub, GauntletArgs& a) {
  auto& o = a.options;
  sub.add_option("--rows", o.rows, "rows of the catalogue: M01,D*")->delimiter(',');
  sub.add_option("--clean", o.clean, "runs on a sound device, which must stay silent")->capture_default_str();
  sub.add_flag("--full", o.full, "run all tests on each row, not only until one catches it");
  sub.add_option("--vary", o.vary, "draw each fault's parameters from their ranges, with this seed")
      ->check(whole_number());
  sub.add_option("--filter", o.tests, "only tests with these ids (* and ?)")->allow_extra_args(false);
  sub.add_option("--profile", o.profile, "profile whose tests are measured")->capture_default_str();
  sub.add_option("--hbm", o.hbm, "memory of the device; rows that need more get it")->capture_default_str();
  sub.add_option("--seed", o.seed, "seed of the tests")->check(whole_number())->capture_default_str();
  sub.add_flag("--resume", o.resume, "take finished rows of the same build and options from the state file");
  sub.add_option("--state", o.state, "where finished rows are kept")->capture_default_str();
  sub.add_option("--keep", o.keep, "keep the journals of all runs in this folder");
  auto* lab = sub.add_flag("--lab", a.lab, "plant the bugs of the kernel driver, one guest a bug; as root");
  sub.add_option("--kernels", a.kernels,
                 "with --lab: a bug goes to these in turn until one shows it; clean runs on each")
      ->delimiter(',')
      ->needs(lab)
      ->capture_default_str();
  sub.add_flag("--list", a.list, "only show what would be planted");
  sub.add_flag("--json", a.json, "result as one JSON document");
  sub.add_option("--output", a.output, "write the result to this file, which must not exist");
}

}  // namespace

void add_gauntlet(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand(
      "gauntlet", "plant faults, see which tests catch them: the measure of the tests themselves");
  sub->footer(
      "Examples:\n"
      "  kangzao gauntlet --rows 'M*,C01' --clean 0\n"
      "  kangzao gauntlet --vary 7 --clean 20 --json --output gauntlet.json\n"
      "  kangzao gauntlet --resume                   go on where the last one ended\n"
      "  kangzao gauntlet --lab --rows 'K0*'         bugs of the kernel driver, in lab guests\n"
      "Exit: 0 all caught, rightly named and the clean runs silent, 1 not, 2 usage, 125 nothing run, 130 "
      "interrupted");
  auto a = std::make_shared<GauntletArgs>();
  a->options.state = "runs/gauntlet.state.jsonl";
  add_options(*sub, *a);
  sub->callback([a, &exit_status] { exit_status = gauntlet_command(*a); });
}

}  // namespace kz
