// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "tools/journal/writer.h"
#include "tools/kangzao/commands.h"
#include "tools/kangzao/load/document.h"
#include "tools/kangzao/run_output.h"
#include "tools/report/compare.h"
#include "tools/report/formats.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

std::string dump(const nlohmann::json& j) {
  return j.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

TerminalStyle style() {
  return {.colour = ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr};
}

RunSummary run_of(const Journal& journal, const std::string& path) {
  RunSummary run = summarize(journal);
  if (!run.device.empty()) return run;
  throw JournalError(fmt::format(
      "read run {}: no record says what it was started on; that is not the journal of a run", path));
}

RunSummary read_run(const std::string& path) { return run_of(read_journal(path), path); }

bool is_load(const Journal& journal) { return text_of(journal.records.front(), "type") == "load-start"; }

// The result that a load left, as it was printed then.
void report_load(const Journal& journal, bool json, const std::string& output) {
  for (const auto& record : journal.records) {
    if (text_of(record, "type") != "load-result") continue;
    return write_output(json ? dump(record) : load_table(record), output);
  }
  write_output("the load was cut off, or still runs: its journal has no result\n", output);
}

}  // namespace

int print_run(const RunSummary& run, const std::string& directory, bool json) {
  int code = exit_code(run);
  if (json) {
    write_output(dump(to_json(run)), "");
    return code;
  }
  write_output(
      "\n" + to_terminal(run, style()) +
          fmt::format("\njournal     {0}/journal.jsonl\njunit       {0}/junit.xml\nexit        {1}\n",
                      directory, code),
      "");
  return code;
}

void add_report(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("report", "what a run's journal says");
  sub->footer(
      "Examples:\n  kangzao report runs/latest\n  kangzao report runs/latest --json\n  kangzao report "
      "runs/latest --junit --output junit.xml");
  struct Args {
    std::string run, output;
    bool json = false, junit = false, ktap = false;
  };
  auto a = std::make_shared<Args>();
  sub->add_option("run", a->run, "folder of a run, or its journal")->required();
  auto* json = sub->add_flag("--json", a->json, "one JSON document (docs/report-schema.json)");
  auto* junit = sub->add_flag("--junit", a->junit, "JUnit XML")->excludes(json);
  sub->add_flag("--ktap", a->ktap, "KTAP, as the kernel's selftests print it")
      ->excludes(json)
      ->excludes(junit);
  sub->add_option("--output", a->output, "write to this file, which must not exist yet");
  sub->callback([a, &exit_status] {
    Journal journal = read_journal(a->run);
    if (is_load(journal)) {
      report_load(journal, a->json, a->output);
      exit_status = 0;
      return;
    }
    RunSummary run = run_of(journal, a->run);
    TerminalStyle look = a->output.empty() ? style() : TerminalStyle{};
    write_output(a->json    ? dump(to_json(run))
                 : a->junit ? to_junit(run)
                 : a->ktap  ? to_ktap(run)
                            : to_terminal(run, look),
                 a->output);
    exit_status = 0;
  });
}

void add_compare(CLI::App& app, int& exit_status) {
  auto* sub =
      app.add_subcommand("compare", "what changed between two runs: verdicts, environment, measurements");
  sub->footer(
      "Example:\n  kangzao compare runs/before runs/latest\nExit: 0 nothing changed, 1 something did, 2 "
      "usage, 4 unreadable");
  struct Args {
    std::string before, after;
    bool json = false;
    double threshold = 0.5;
  };
  auto a = std::make_shared<Args>();
  sub->add_option("before", a->before, "folder of the first run")->required();
  sub->add_option("after", a->after, "folder of the second run")->required();
  sub->add_option("--threshold", a->threshold, "measurements that moved by more than this part are listed")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  sub->add_flag("--json", a->json, "one JSON document");
  sub->callback([a, &exit_status] {
    RunSummary before = read_run(a->before);  // first: its error is the one to hear
    Comparison c = compare(before, read_run(a->after), a->threshold);
    write_output(a->json ? dump(to_json(c)) : to_terminal(c), "");
    exit_status = c.same() ? 0 : 1;
  });
}

}  // namespace kz
