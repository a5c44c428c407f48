// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tools/kangzao/commands.h"
#include "tools/kangzao/numbers.h"
#include "tools/kangzao/run_folder.h"
#include "tools/kangzao/run_output.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"
#include "tools/kangzao/selection_options.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

constexpr size_t longest_socket = sizeof(sockaddr_un::sun_path) - 1;

// So that the run can be taken up, or a test run again, from another folder.
std::string with_absolute_paths(const std::string& device) {
  Uri uri = parse_uri(device);
  auto absolute = [](std::string& path) { path = fs::absolute(path).lexically_normal(); };
  if (uri.scheme == "dump" || uri.scheme == "vfio-user") absolute(uri.path);
  if (uri.scheme == "softtpu")
    for (auto& [name, value] : uri.options)
      if (name == "script" || name == "log") absolute(value);
  if (uri.scheme == "vfio-user" && uri.path.size() > longest_socket) return device;
  std::string text = uri.scheme + ":" + uri.path;
  for (auto& [name, value] : uri.options) text += (text.back() == ':' ? "" : ",") + name + "=" + value;
  return text;
}

struct RunArgs {
  RunOptions options;
  std::string output;
  bool json = false, dry_run = false;
  std::optional<uint64_t> seed;
};

int run_command(RunArgs& a) {
  a.options.seed = a.seed.value_or(std::random_device{}());
  if (a.dry_run) {
    auto tests =
        select_tests(load_catalog(program_directory(), a.options.selection.profile), a.options.selection);
    parse_uri(a.options.device);
    for (auto& t : tests) fmt::print("{} {}\n", t.level, t.id);
    fmt::print("{} tests would run on {}\n", tests.size(), a.options.device);
    return tests.empty() ? 125 : 0;
  }
  a.options.device = with_absolute_paths(a.options.device);
  if (!a.options.module.empty()) a.options.module = fs::absolute(a.options.module).lexically_normal();
  catch_signals();
  bool named = !a.output.empty();
  std::string directory = named ? a.output : new_run_directory();
  Runner runner(a.options, directory, a.json);
  runner.begin();
  if (!named) point_latest(directory);
  return print_run(runner.go(), directory, a.json);
}

}  // namespace

void add_run(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("run", "run tests on a device and say what that proved");
  sub->footer(
      "Examples:\n"
      "  kangzao run                                          quick profile, private software TPU\n"
      "  kangzao run --device softtpu:hbm=64M --level 1 --level 2\n"
      "  kangzao run --device pci:0000:01:00.0\n"
      "  kangzao run --device dev:/dev/kz0 --group kmod --destructive     driver and module, as root\n"
      "  kangzao run --filter 'dma.*' --repeat 1000           with the bound that this proves\n"
      "  kangzao run --filter context.leak --until-fail --seed 7\n"
      "Exit: 0 clean, 1 fail/warn/crash/timeout, 2 usage, 3 device lost, 4 host or journal trouble, 125 "
      "blocked or nothing "
      "run, 130 interrupted");
  auto a = std::make_shared<RunArgs>();
  sub->add_option("--device", a->options.device, "device URI")->capture_default_str();
  add_selection_options(*sub, a->options.selection);
  sub->add_option("--repeat", a->options.repeat, "run the selection N times")
      ->check(CLI::Range(1, 1000000000));
  sub->add_flag("--until-fail", a->options.until_fail, "repeat until something is not clean");
  sub->add_flag("--stop-on-fail", a->options.stop_on_fail,
                "run nothing more after the first test that is not clean");
  sub->add_option("--seed", a->seed, "seed of every random choice (default: a new one, printed)")
      ->check(whole_number());
  sub->add_option("--retries", a->options.retries,
                  "how often a failed test is tried again to tell hard from intermittent")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  sub->add_option("--order", a->options.selection.order,
                  "test ids in the order to run them (* and ?); the rest follows")
      ->allow_extra_args(false);
  sub->add_option("--output", a->output, "folder of the run; must be new or empty");
  sub->add_flag("--destructive", a->options.destructive,
                "allow tests that reset the device or lose its data");
  sub->add_flag("--i-know", a->options.i_know,
                "even on a device that carries a file system, swap, the default route or the console");
  sub->add_option("--module", a->options.module,
                  "file of the driver's module, for group kmod (default: what modinfo names; in a lab guest "
                  "the lab's)");
  sub->add_option("--load-command", a->options.load_command,
                  "shell text that loads the device while group kmod takes it away, such as fio; unneeded for "
                  "dev:");
  sub->add_flag("--json", a->json, "result as one JSON document on standard output");
  sub->add_flag("--dry-run", a->dry_run, "only list what would run");
  sub->callback([a, &exit_status] { exit_status = run_command(*a); });
}

void add_resume(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("resume", "go on with a run that was killed or lost to a reboot");
  sub->footer(
      "Example:\n  kangzao resume runs/latest\nThe test that was running gets verdict crash; finished ones "
      "keep theirs.");
  auto directory = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  sub->add_option("run", *directory, "folder of the run")->required();
  sub->add_flag("--json", *json, "result as one JSON document on standard output");
  sub->callback([=, &exit_status] {
    catch_signals();
    if (is_lab_run(*directory)) {
      exit_status = resume_lab(*directory, *json);
      return;
    }
    exit_status = print_run(Runner::resume(*directory, *json)->go(), *directory, *json);
  });
}

}  // namespace kz
