// SPDX-License-Identifier: GPL-2.0-or-later
// A run that ended before its time is taken up again from what its journal says.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "shim/base/error.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"

namespace kz {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

// What a killed runner's software TPU left: only ever files of its names, and the folder it had for itself.
void remove_stale_socket(const fs::path& path) {
  std::error_code ec;
  if (!path.filename().string().starts_with("softtpu.")) return;
  if (fs::is_socket(path, ec)) fs::remove(path, ec);
  fs::path folder = path.parent_path();
  if (!folder.filename().string().starts_with("kz-softtpu-")) return;
  fs::remove(folder / "softtpu.err", ec);
  fs::remove(folder, ec);  // once it is empty
}

const json& start_of(const Journal& journal, const std::string& directory) {
  for (auto& r : journal.records)
    if (text_of(r, "type") == "run-start" && r.contains("options") && r.contains("tests") &&
        r["tests"].is_array())
      return r;
  throw JournalError("the journal in " + directory + " has no start record; run again from the beginning");
}

// The tests of a run that is taken up again, in its order.
std::vector<TestDeclaration> tests_of(const json& start, const std::vector<TestDeclaration>& all) {
  std::vector<TestDeclaration> out;
  for (auto& wanted : start["tests"]) {
    std::string id = text_of(wanted, "id");
    auto it = std::find_if(all.begin(), all.end(), [&](auto& t) { return t.id == id; });
    if (it == all.end())
      throw JournalError(
          fmt::format("test '{}' of that run is not in this build; build the version that started it", id));
    out.push_back(*it);
  }
  return out;
}

// A process of a test, as the journal names it.
struct TestProcess {
  std::string id;
  pid_t pid;
  uint64_t started;
  bool is_there() const { return started != 0 && start_ticks(pid) == started; }
};

constexpr auto end_grace = 5s;  // for what the dead runner's end told to end

// Two users of one device at once would judge each other. Throws JournalError.
void wait_for_the_old_ones(const std::vector<TestProcess>& tests) {
  for (Deadline grace(end_grace);;) {
    auto left = std::ranges::find_if(tests, &TestProcess::is_there);
    if (left == tests.end()) return;
    if (grace.passed())
      throw JournalError(fmt::format(
          "{} of that run still holds the device (process {}); end it, or start the machine anew, before "
          "the run goes on",
          left->id, left->pid));
    ::poll(nullptr, 0, 20);
  }
}

}  // namespace

json RunOptions::to_json() const {
  const Selection& s = selection;
  return {{"device", device},         {"profile", s.profile},
          {"filters", s.filters},     {"groups", s.groups},
          {"labels", s.labels},       {"without_labels", s.without_labels},
          {"levels", s.levels},       {"repeat", repeat},
          {"until_fail", until_fail}, {"stop_on_fail", stop_on_fail},
          {"order", s.order},         {"seed", std::to_string(seed)},
          {"retries", retries},       {"destructive", destructive},
          {"i_know", i_know},         {"module", module},
          {"load_command", load_command}};
}

RunOptions RunOptions::from_json(const json& j) {
  RunOptions o;
  using strings = std::vector<std::string>;
  o.device = j.value("device", o.device);
  o.selection = {j.value("profile", "quick"),          j.value("filters", strings()),
                 j.value("groups", strings()),         j.value("labels", strings()),
                 j.value("without_labels", strings()), j.value("levels", std::vector<int>()),
                 j.value("order", strings())};
  o.repeat = j.value("repeat", 1);
  o.until_fail = j.value("until_fail", false);
  o.stop_on_fail = j.value("stop_on_fail", false);
  o.seed = std::stoull(j.value("seed", "1"));
  o.retries = j.value("retries", 3);
  o.destructive = j.value("destructive", false);
  o.i_know = j.value("i_know", false);
  o.module = j.value("module", "");
  o.load_command = j.value("load_command", "");
  return o;
}

std::unique_ptr<Runner> Runner::resume(const std::string& directory, bool quiet) {
  start_of(read_journal(directory), directory);  // what is no journal of a run is not written to
  // From here on nobody else writes.
  auto writer = std::make_unique<JournalWriter>(fs::absolute(directory), JournalWriter::Mode::append);
  Journal journal = read_journal(directory);
  const json& start = start_of(journal, directory);
  std::unique_ptr<Runner> runner;
  try {
    runner.reset(
        new Runner(RunOptions::from_json(start.at("options")), directory, quiet, Before{.resumed = true}));
  } catch (const std::exception& e) {
    throw JournalError(fmt::format("the start record in {} cannot be used ({}); run again from the beginning",
                                   directory, e.what()));
  }
  runner->tests_ = tests_of(start, load_catalog(program_directory(), runner->options_.selection.profile));
  runner->journal_ = std::move(writer);
  runner->take_up(journal);
  runner->journal_->write({{"type", "resume"}, {"after", runner->before_.test}}, true);
  if (runner->journal_->was_torn())
    runner->journal_->write({{"type", "note"}, {"text", "the journal's last line was torn and is dropped"}});
  return runner;
}

void Runner::take_up(const Journal& journal) {
  for (const char* name : {"/softtpu.sock", "/softtpu.ctl"}) remove_stale_socket(directory_ + name);
  std::vector<TestProcess> processes;
  for (auto& r : journal.records) {
    std::string type = text_of(r, "type"), id = text_of(r, "id");
    if (type == "test-start") {
      before_.test = id;
      before_.danger.clear();
      before_.seed = text_of(r, "seed");
    } else if (type == "danger" && id == before_.test) {
      before_.danger = text_of(r, "step");
    } else if (type == "verdict") {
      auto v = parse_verdict(text_of(r, "verdict"));
      // What was blocked or not reached without having run may run now.
      bool stood_in = r.value("ran", nlohmann::json()) == false && v != Verdict::skip;
      if (v && *v != Verdict::not_run && !stood_in) ++done_[id];
      failed_ |= v && is_unclean(*v);
      before_.test.clear();
    } else if (type == "interrupted") {  // by the user or the host, not by the device: it runs again
      before_.test.clear();
    } else if (type == "test-process") {
      if (text_of(r, "boot") == journal_->boot())
        processes.push_back(
            {id, static_cast<pid_t>(number_of(r, "pid")), static_cast<uint64_t>(number_of(r, "started"))});
    } else if (type == "environment") {
      before_.knew_device = true;
    } else if (type == "run-start") {
      before_.knew_device = r.contains("environment") && r["environment"].contains("device");
    } else if (type == "device-process") {
      remove_stale_socket(text_of(r, "socket"));
      remove_stale_socket(text_of(r, "control"));
    }
  }
  wait_for_the_old_ones(processes);
}

void Runner::bury_dead_test() {
  for (auto& t : tests_) {
    if (t.id != before_.test) continue;
    TestOutcome out;
    out.reason =
        "the run ended while it ran" + (before_.danger.empty() ? "" : ", after the step: " + before_.danger);
    verdict(t, out, std::strtoull(before_.seed.c_str(), nullptr, 10));
  }
}

// Whatever was going on when the runner died may have left the device in pieces.
void Runner::check_after_death() {
  if (softtpu_) return;  // a fresh one
  ProbeResult health = look_at_health(before_.test);
  if (told_to_stop()) return;
  TestOutcome nobody;
  if (health.ok || health.code == to_string(Errc::bad_data) || restore_device(health.text, nobody)) return;
  lost_ = true;
  journal_->write({{"type", "device-lost"}, {"id", before_.test}, {"text", nobody.reason}}, true);
}

}  // namespace kz
