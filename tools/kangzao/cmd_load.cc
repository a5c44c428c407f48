// SPDX-License-Identifier: GPL-2.0-or-later
// kangzao load: a device under a load from a job file, every operation accounted for.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/commands.h"
#include "tools/kangzao/load/document.h"
#include "tools/kangzao/load/supervise.h"
#include "tools/kangzao/numbers.h"
#include "tools/kangzao/run_folder.h"
#include "tools/kangzao/runner/environment.h"
#include "tools/kangzao/runner/run.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using nlohmann::json;

struct LoadArgs {
  std::string file, output, run_dir, time;
  std::vector<std::string> devices;
  std::optional<uint64_t> seed;
  bool json_wanted = false, quiet = false;
};

LoadRequest request_of(const LoadArgs& a) {
  LoadRequest r;
  r.plan = load::read_plan(a.file);
  r.devices = a.devices;
  if (!a.time.empty()) r.time = a.time;
  r.seed = a.seed;
  r.apply();
  return r;
}

json start_record(const LoadRequest& r) {
  json devices = json::array(), jobs = json::array();
  for (const auto& job : r.plan.jobs) {
    jobs.push_back(job.name);
    for (const auto& uri : job.devices)
      if (job.target == load::Target::device && std::ranges::find(devices, json(uri)) == devices.end())
        devices.push_back(uri);
  }
  return {{"type", "load-start"},
          {"source", r.plan.source},
          {"profile", r.plan.text},
          {"devices", devices},
          {"jobs", jobs},
          {"seed", std::to_string(r.plan.jobs.front().seed)},
          {"environment", host_environment()}};
}

void show_progress(const json& sample) {
  say(fmt::format("{:5.0f} s  sent {}  completed {}  failed {}  late {}  backlog up to {}\n",
                  sample.at("seconds").get<double>(), sample.at("sent").get<uint64_t>(),
                  sample.at("completed").get<uint64_t>(), sample.at("failed").get<uint64_t>(),
                  sample.at("late").get<uint64_t>(), sample.at("backlog_max").get<uint64_t>()));
}

int load_command(const LoadArgs& a) {
  LoadRequest request = request_of(a);
  catch_signals();
  if (!a.output.empty() && ::access(a.output.c_str(), F_OK) == 0)
    throw JournalError("create " + a.output + ": it is there already; name a file that is not there yet");
  bool named = !a.run_dir.empty();
  std::string directory =
      std::filesystem::absolute(named ? a.run_dir : new_run_directory()).lexically_normal();
  create_run_directory(directory);
  JournalWriter journal(directory, JournalWriter::Mode::create);
  if (!named) point_latest(directory);
  journal.write(start_record(request), true);

  bool show = !a.json_wanted && !a.quiet && ::isatty(STDERR_FILENO) == 1;
  auto outcome = supervise(request, [&](const load::Ledger& ledger, double seconds) {
    json sample = load_sample(ledger, seconds);
    if (show) show_progress(sample);
    sample["type"] = "load-sample";
    journal.write(std::move(sample));
  });

  json document = load_document(request, outcome);
  json result = document;
  result["type"] = "load-result";
  journal.write(std::move(result), true);
  std::string text = document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  if (!a.output.empty()) write_output(text, a.output);
  if (a.json_wanted)
    write_output(text, "");
  else
    write_output(load_table(document) + fmt::format("journal  {}/journal.jsonl\nexit     {}\n", directory,
                                                    document["exit"].get<int>()),
                 "");
  if (auto reasons = load_reasons(outcome); document["exit"] != 0) {
    std::string line = reasons.empty() ? "not clean" : reasons.front();
    if (reasons.size() > 1) line += fmt::format("; and {} more, see the result", reasons.size() - 1);
    say(fmt::format("kangzao: load: {}\n", printable(line)));
  }
  return document["exit"].get<int>();
}

void add_internal_load(CLI::App& app, int& exit_status) {
  struct Args {
    LoadRequest request;
    std::string source;
    int ledger = -1, text = -1;
    unsigned process = 0;
  };
  auto* sub = app.add_subcommand("internal-load", "");
  sub->group("");  // hidden
  auto a = std::make_shared<Args>();
  sub->add_option("--ledger", a->ledger)->required();
  sub->add_option("--text", a->text)->required();
  sub->add_option("--source", a->source)->required();
  sub->add_option("--process", a->process)->required();
  sub->add_option("--device", a->request.devices)->allow_extra_args(false);
  sub->add_option("--time", a->request.time);
  sub->add_option("--seed", a->request.seed);
  sub->callback([a, &exit_status] {
    exit_status = load_child(a->ledger, a->text, a->source, std::move(a->request), a->process);
  });
}

}  // namespace

void add_load(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("load", "load a device from a job file and account for every operation");
  sub->footer(
      "Examples:\n"
      "  kangzao load docs/load-examples/mixed.load\n"
      "  kangzao load docs/load-examples/copies.load --device vfio-user:/tmp/tpu.sock --time 60s\n"
      "  kangzao load mine.load --device softtpu:serial=1 --device softtpu:serial=2 --json --output "
      "result.json\n"
      "  printf '[a]\\nmix=nop\\nrate=5k\\n' | kangzao load -\n"
      "The job file is described in docs/load.md. A first Ctrl-C stops sending and waits for what is "
      "outstanding, a "
      "second one waits for nothing.\n"
      "Exit: 0 all completed and right, 1 something failed, was cancelled or lost, or came back wrong, 2 "
      "usage, 3 device "
      "lost, 4 host or journal trouble, 125 could not start, 130 interrupted");
  auto a = std::make_shared<LoadArgs>();
  sub->add_option("file", a->file, "job file, - for standard input")->required();
  sub->add_option("--device", a->devices,
                  "device URI, instead of those of the file; may be given more than once")
      ->allow_extra_args(false);
  sub->add_option("--time", a->time, "how long, instead of the jobs' own time");
  sub->add_option("--seed", a->seed, "seed of every random choice, instead of the jobs' own")
      ->check(whole_number());
  sub->add_flag("--json", a->json_wanted, "result as one JSON document on standard output");
  sub->add_option("--output", a->output, "the JSON document into this file too, which must not exist yet");
  sub->add_option("--run-dir", a->run_dir,
                  "folder of the journal; must be new or empty (default: one below runs/)");
  sub->add_flag("--quiet", a->quiet, "no line a second while it runs");
  sub->callback([a, &exit_status] { exit_status = load_command(*a); });
  add_internal_load(app, exit_status);
}

}  // namespace kz
