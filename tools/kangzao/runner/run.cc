// SPDX-License-Identifier: GPL-2.0-or-later
// The order of a run. One test is in one_test.cc, the device between tests in run_device.cc, taking up a run
// that ended early in run_resume.cc.
#include "tools/kangzao/runner/run.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "shim/base/error.h"
#include "tools/kangzao/runner/environment.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/safety.h"
#include "tools/report/formats.h"

namespace kz {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

volatile sig_atomic_t stop_signal = 0;

std::vector<int> levels_of(const std::vector<TestDeclaration>& tests, const Selection& s) {
  std::set<int> levels;
  if (s.filters.empty() && s.groups.empty() && s.levels.empty() && s.labels.empty()) levels = {1, 2, 3, 4};
  for (auto& t : tests) levels.insert(t.level);
  return {levels.begin(), levels.end()};
}

}  // namespace

void create_run_directory(const std::string& directory) {
  std::error_code ec;
  bool existed = fs::exists(directory, ec);
  if (existed && (!fs::is_directory(directory, ec) || !fs::is_empty(directory, ec)))
    throw JournalError("output " + directory + " is there already; name another with --output");
  fs::path old = fs::path(directory);
  while (!fs::exists(old, ec) && old.has_relative_path()) old = old.parent_path();
  fs::create_directories(directory, ec);
  if (ec) throw JournalError(fmt::format("create output {}: {}", directory, ec.message()));
  for (fs::path made = directory; made != old; made = made.parent_path()) sync_folder(made.parent_path());
}

void write_run_end(JournalWriter& journal, const std::string& directory, const char* how) {
  RunSummary now = summarize(read_journal(directory));
  now.interrupted = told_to_stop();
  now.finished = true;
  json counts;
  for (Verdict v : all_verdicts)
    counts[std::string(to_string(v))] = now.counts.contains(v) ? now.counts.at(v) : 0;
  journal.write({{"type", "run-end"},
                 {"how", how},
                 {"exit", exit_code(now)},
                 {"counts", counts},
                 {"proved", now.proved},
                 {"not_proved", now.not_proved}},
                true);
  std::ofstream junit(directory + "/junit.xml");
  junit << to_junit(summarize(read_journal(directory)));
  if (!junit.flush()) throw JournalError("write " + directory + "/junit.xml: no room or no permission");
}

bool is_unclean(Verdict v) { return is_failure(v) || v == Verdict::warn; }

bool told_to_stop() { return stop_signal != 0; }

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int s) { stop_signal = s; };  // no SA_RESTART: waits return
  struct sigaction before {};
  for (int s : {SIGINT, SIGTERM, SIGHUP})  // nohup and shells ask for some to be ignored
    if (::sigaction(s, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      ::sigaction(s, &action, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file limit shows as EFBIG
}

Runner::Runner(RunOptions options, std::string directory, bool quiet, Before before)
    : options_(std::move(options)),
      directory_(fs::absolute(directory)),
      quiet_(quiet),
      uri_(parse_uri(options_.device)),
      before_(std::move(before)) {}

Runner::Runner(RunOptions options, std::string directory, bool quiet)
    : Runner(std::move(options), std::move(directory), quiet, Before{}) {
  tests_ = select_tests(load_catalog(program_directory(), options_.selection.profile), options_.selection);
  create_run_directory(directory_);
  journal_ = std::make_unique<JournalWriter>(directory_, JournalWriter::Mode::create);
}

void Runner::write_start(const ProbeResult& probe) {
  json environment = host_environment();
  if (probe.ok) environment["device"] = probe.data;
  json tests = json::array();
  for (auto& t : tests_) tests.push_back({{"id", t.id}, {"level", t.level}});
  journal_->write({{"type", "run-start"},
                   {"device", options_.device},
                   {"profile", options_.selection.profile},
                   {"seed", std::to_string(options_.seed)},
                   {"repeat", options_.repeat},
                   {"levels", levels_of(tests_, options_.selection)},
                   {"options", options_.to_json()},
                   {"environment", environment},
                   {"tests", tests}},
                  true);
}

std::string Runner::why_not_destructive() const {
  if (is_softtpu()) return {};
  if (!options_.destructive) return "destructive, and --destructive was not given";
  if (!inhabitants_.empty() && !options_.i_know)
    return fmt::format("refused: {} (--i-know to do it all the same)", inhabitants_.front());
  return {};
}

std::string Runner::refusal(const TestDeclaration& t) const {
  return t.has_label("destructive") ? why_not_destructive() : "";
}

void Runner::begin() {
  become_subreaper();
  size_t done = 0, all = tests_.size() * static_cast<size_t>(options_.until_fail ? 1 : options_.repeat);
  for (auto& [id, n] : done_) done += static_cast<size_t>(n);
  progress_ = std::make_unique<Progress>(all > done ? all - done : 0, quiet_);
  try {
    bury_dead_test();
    prepare();
  } catch (...) {
    abandon();
    throw;
  }
}

// Of a run that could not even start nothing is worth keeping.
void Runner::abandon() {
  softtpu_.reset();
  if (before_.resumed || journal_->records() > 0) return;
  journal_.reset();
  std::error_code ec;
  for (const char* name : {"/journal.jsonl", "/lock", "/softtpu.log", "/softtpu.err"})
    fs::remove(directory_ + name, ec);
  fs::remove(directory_, ec);  // only when empty
}

RunSummary Runner::go() {
  if (!progress_) begin();
  if (ready_) run_all();
  for (auto& t : tests_)
    if (done_[t.id] == 0 && !told_to_stop())
      verdict_without_run(t, Verdict::not_run,
                          lost_ ? "the device was lost before" : "an earlier test was not clean");
  finish(told_to_stop() ? "interrupted" : lost_ ? "device-lost" : "complete");
  return summarize(read_journal(directory_));
}

void Runner::run_all() {
  int repeat = options_.until_fail ? 1 << 30 : options_.repeat;
  bool stop_early = options_.until_fail || options_.stop_on_fail;
  for (int i = 0; i < repeat; ++i) {
    any_ran_ = false;
    for (auto& t : tests_) {
      if (lost_ || told_to_stop() || (failed_ && stop_early)) return;
      if (done_[t.id] <= i) run_one(t, i);
    }
    if (options_.until_fail && !any_ran_) return;  // nothing here can run, so nothing will ever fail
  }
}

void Runner::run_one(const TestDeclaration& t, int iteration) {
  if (std::string why = refusal(t); !why.empty()) return verdict_without_run(t, Verdict::skip, why);
  uint64_t seed = options_.seed + static_cast<uint64_t>(iteration);
  revive();
  progress_->begin(t.id);
  take_kernel_context();
  journal_->write(
      {{"type", "test-start"}, {"id", t.id}, {"iteration", iteration}, {"seed", std::to_string(seed)}}, true);
  snapshot(t, "before");
  try {
    TestOutcome out = attempt(t, seed, true);
    if (out.interrupted) return interrupted(t, out);
    snapshot(t, "after");
    judge_kernel_log(t, out);
    bool reset_by_us = !settle(t, out);
    // The kernel may speak late; but not against a test what a recovery made it say.
    if (!reset_by_us) judge_kernel_log(t, out);
    verdict(t, out, seed);
    if (out.verdict == Verdict::fail && !lost_) retry(t, seed);
  } catch (...) {
    // The host failed, not the device: the test is to run again, not to be called dead.
    journal_->last_words({{"type", "interrupted"}, {"id", t.id}});
    throw;
  }
}

void Runner::interrupted(const TestDeclaration& t, const TestOutcome& out) {
  json record = {{"type", "interrupted"}, {"id", t.id}};
  if (out.left_running) {
    record["left_running"] = out.pid;
    lost_ = true;
  }
  journal_->write(std::move(record), true);
}

TestOutcome Runner::attempt(const TestDeclaration& t, uint64_t seed, bool keep_records) {
  TestRun run{
      .test = t,
      .uri = test_uri_,
      .profile = options_.selection.profile == "all" ? "quick" : options_.selection.profile,
      .run_dir = directory_,
      .seed = seed,
      .more = {{"KANGZAO_BDF", bdf_},
               {"KANGZAO_MODULE", options_.module},
               {"KANGZAO_LOAD_COMMAND", options_.load_command}},
      .may_kill = may_kill(),
      .record =
          [&](json record, bool durable) {
            if (keep_records || durable) journal_->write(std::move(record), durable);
          },
      .started =
          [&](pid_t pid) {
            journal_->write(
                {{"type", "test-process"}, {"id", t.id}, {"pid", pid}, {"started", start_ticks(pid)}});
          },
      .stop = told_to_stop,
      .device_process = softtpu_ ? softtpu_->pid() : -1,
      .tick = [&] { progress_->tick(); },
      .state = [&] { return device_state(); }};
  return run_test(run);
}

// What the device answers while a test hangs on it. A vfio-user device has one client, and that is the test.
std::string Runner::device_state() const {
  if (is_softtpu() || uri_.scheme == "vfio-user") return "not asked, it has one client";
  ProbeResult probe = probe_device(test_uri_, rules(), std::chrono::seconds(5));
  return probe.ok ? probe.data.dump(-1, ' ', false, json::error_handler_t::replace) : probe.text;
}

void Runner::snapshot(const TestDeclaration& t, const char* when) {
  json data = {{"taint", kernel_taint()}};
  if (softtpu_ && softtpu_->running()) data["softtpu"] = process_usage(softtpu_->pid());
  journal_->write({{"type", "snapshot"}, {"id", t.id}, {"when", when}, {"of", "host"}, {"data", data}});
}

// Says only whether the failure is hard or intermittent; the verdict stands.
void Runner::retry(const TestDeclaration& t, uint64_t seed) {
  int failed = 0, tried = 0;
  for (; tried < options_.retries && !told_to_stop() && !lost_; ++tried) {
    TestOutcome out = attempt(t, seed, false);
    if (out.interrupted) return;
    failed += out.verdict == Verdict::pass || out.verdict == Verdict::warn ? 0 : 1;
    settle(t, out);
    journal_->write(
        {{"type", "retry"}, {"id", t.id}, {"verdict", to_string(out.verdict)}, {"reason", out.reason}});
  }
  if (tried == 0) return;
  std::string text = failed == tried ? fmt::format("hard: {} of {} retries failed too", failed, tried)
                                     : fmt::format("intermittent: {} of {} retries failed", failed, tried);
  journal_->write({{"type", "retries"}, {"id", t.id}, {"failed", failed}, {"of", tried}, {"text", text}});
}

std::string Runner::rerun_line(const TestDeclaration& t, uint64_t seed) const {
  return fmt::format("kangzao run --device '{}' --profile {} --filter {} --seed {}{}", options_.device,
                     options_.selection.profile, t.id, seed, options_.destructive ? " --destructive" : "") +
         (options_.i_know ? " --i-know" : "") +
         (options_.module.empty() ? "" : fmt::format(" --module '{}'", options_.module)) +
         (options_.load_command.empty() ? "" : fmt::format(" --load-command '{}'", options_.load_command));
}

void Runner::verdict(const TestDeclaration& t, const TestOutcome& out, uint64_t seed) {
  json record = {{"type", "verdict"},
                 {"id", t.id},
                 {"level", t.level},
                 {"verdict", to_string(out.verdict)},
                 {"reason", out.reason},
                 {"seconds", out.seconds},
                 {"seed", std::to_string(seed)},
                 {"failures", out.failures}};
  bool clean = out.verdict == Verdict::pass || out.verdict == Verdict::skip;
  if (!clean) {
    record["rerun"] = rerun_line(t, seed);
    if (!out.output.empty())
      record["output"] = out.output.substr(out.output.size() > 16384 ? out.output.size() - 16384 : 0);
    if (!out.hang.empty()) record["hang"] = out.hang;
  }
  journal_->write(std::move(record), true);
  ++done_[t.id];
  failed_ |= is_unclean(out.verdict);
  any_ran_ |= out.verdict != Verdict::skip && out.verdict != Verdict::blocked;
  progress_->end(t.id, out.verdict, out.seconds, out.reason);
}

void Runner::verdict_without_run(const TestDeclaration& t, Verdict v, const std::string& reason) {
  journal_->write({{"type", "verdict"},
                   {"id", t.id},
                   {"level", t.level},
                   {"verdict", to_string(v)},
                   {"reason", reason},
                   {"ran", false},
                   {"seconds", 0}});
  ++done_[t.id];
  progress_->end(t.id, v, 0, reason);
}

// What the kernel says between tests is nobody's.
void Runner::take_kernel_context() {
  if (!kernel_) return;
  if (KernelLines between = kernel_->take(); !between.against.empty() || between.overrun)
    journal_->write({{"type", "kernel-context"}, {"lines", between.against}, {"overrun", between.overrun}});
}

void Runner::judge_kernel_log(const TestDeclaration& t, TestOutcome& out) {
  KernelLines lines = kernel_->take(out.expected_log);
  for (auto& line : lines.against)
    journal_->write(
        {{"type", "evidence"}, {"id", t.id}, {"kind", "kernel.log"}, {"detail", {{"line", line}}}});
  if (!lines.context.empty() || lines.overrun)
    journal_->write(
        {{"type", "kernel-context"}, {"id", t.id}, {"lines", lines.context}, {"overrun", lines.overrun}});
  if (!lines.expected.empty()) {
    journal_->write({{"type", "kernel-context"},
                     {"id", t.id},
                     {"lines", lines.expected},
                     {"overrun", false},
                     {"expected", true}});
    out.expected_taint |= taint_of_warning;
  }
  unsigned long taint = kernel_taint();
  bool tainted = (taint & ~out.expected_taint) != (taint_ & ~out.expected_taint);
  taint_ = taint;
  std::string dirt;
  if (!lines.against.empty())
    dirt = fmt::format("the kernel log has {} lines about it, first: {}", lines.against.size(),
                       lines.against.front());
  if (tainted) dirt += fmt::format("{}the kernel is newly tainted ({:#x})", dirt.empty() ? "" : "; ", taint);
  if (out.leftovers > 0)
    dirt += fmt::format("{}it left {} processes behind", dirt.empty() ? "" : "; ", out.leftovers);
  if (dirt.empty() || out.verdict != Verdict::pass) return;
  out.verdict = Verdict::warn;
  out.reason = dirt;
}

void Runner::finish(const char* how) {
  take_kernel_context();
  softtpu_.reset();
  write_run_end(*journal_, directory_, how);
}

}  // namespace kz
