// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/report/run_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace kz {
namespace {

// Of two verdicts of one test, the one that counts: the further right, the worse.
int badness(Verdict v) {
  constexpr Verdict order[] = {Verdict::not_run, Verdict::skip,    Verdict::pass,
                               Verdict::warn,    Verdict::blocked, Verdict::fail,
                               Verdict::crash,   Verdict::timeout, Verdict::device_lost};
  return static_cast<int>(std::find(std::begin(order), std::end(order), v) - std::begin(order));
}

constexpr size_t most_notes = 50, longest_note = 500;

class Folder {
 public:
  explicit Folder(RunSummary& run) : run_(run) {}

  void take(const nlohmann::json& r) {
    std::string type = text_of(r, "type");
    count(r);
    if (type == "run-start")
      start(r);
    else if (type == "test-start")
      running_ = text_of(r, "id"), danger_.clear();
    else if (type == "danger" && text_of(r, "id") == running_)
      danger_ = text_of(r, "step");
    else if (type == "interrupted")
      running_.clear();
    else if (type == "verdict")
      verdict(r);
    else if (type == "evidence")
      evidence(r);
    else if (type == "metric")
      metric(r);
    else if (type == "retries")
      retries(r);
    else if (type == "note" || type == "recovery")
      note(text_of(r, "text"));
    else if (type == "environment")
      run_.environment["device"] = r.value("device", nlohmann::json::object());
    else if (type == "device-lost")
      run_.stopped_lost = true;
    else if (type == "resume")
      run_.stopped_lost = run_.interrupted = run_.finished = false;
    else if (type == "run-end")
      run_.finished = true, run_.interrupted = text_of(r, "how") == "interrupted";
  }

  void finish() {
    if (notes_ > most_notes)
      run_.notes.push_back(fmt::format("{} more notes in the journal", notes_ - most_notes));
    for (TestResult& t : run_.results)
      if (t.runs == 0 && !run_.finished) t.reason = unfinished(t.id);
    for (TestResult& t : run_.results) ++run_.counts[t.verdict];
    if (!run_.finished)
      run_.notes.push_back(
          "the journal has no end: the run goes on, or was cut off and 'kangzao resume' takes it up");
    prove();
  }

 private:
  void count(const nlohmann::json& r) {
    auto it = r.find("seq");
    if (it == r.end() || !it->is_number_unsigned()) return;
    const auto seq = it->get<uint64_t>();
    if (seq > next_)
      note(seq == next_ + 1 ? fmt::format("record {} is missing from the journal", next_)
                            : fmt::format("records {} to {} are missing from the journal", next_, seq - 1));
    else if (seq < next_)
      note(fmt::format("record {} comes after record {}: lines of the journal were moved or repeated", seq,
                       next_ - 1));
    next_ = seq + 1;
  }

  // A test that floods must not flood the report too.
  void note(const std::string& text) {
    if (++notes_ <= most_notes)
      run_.notes.push_back(text.size() <= longest_note ? text : text.substr(0, longest_note) + "...");
  }

  std::string unfinished(const std::string& id) const {
    if (id != running_) return "not reached: the run goes on or ended early";
    return "it was running when the journal ends" + (danger_.empty() ? "" : ", after the step: " + danger_);
  }

  void start(const nlohmann::json& r) {
    run_.device = text_of(r, "device");
    run_.profile = text_of(r, "profile");
    run_.seed = text_of(r, "seed");
    run_.started = text_of(r, "wall");
    run_.repeat = static_cast<int>(number_of(r, "repeat", 1));
    run_.environment = r.value("environment", nlohmann::json::object());
    if (auto it = r.find("levels"); it != r.end() && it->is_array())
      for (auto& l : *it)
        if (l.is_number_integer()) run_.levels.push_back(l);
    if (auto it = r.find("tests"); it != r.end() && it->is_array())
      for (auto& t : *it)
        if (t.is_object() && index_.emplace(text_of(t, "id"), run_.results.size()).second)
          run_.results.push_back({.id = text_of(t, "id"), .level = static_cast<int>(number_of(t, "level"))});
  }

  TestResult* test(const nlohmann::json& r) {
    auto it = index_.find(text_of(r, "id"));
    return it == index_.end() ? nullptr : &run_.results[it->second];
  }

  void verdict(const nlohmann::json& r) {
    TestResult* t = test(r);
    auto v = parse_verdict(text_of(r, "verdict"));
    running_.clear();
    if (t == nullptr || !v) return;
    // What stood for a test that could not run is void once it runs.
    if (std::exchange(t->stood_in, r.value("ran", nlohmann::json()) == false)) {
      t->verdict = Verdict::not_run;
      t->runs = t->bad_runs = 0;
    }
    ++t->runs;
    t->passed += *v == Verdict::pass ? 1 : 0;
    t->seconds += number_of(r, "seconds");
    if (is_failure(*v) || *v == Verdict::blocked) ++t->bad_runs;
    if (auto it = r.find("failures"); it != r.end() && it->is_array())
      for (auto& f : *it)
        if (f.is_object() && t->failures.size() < 20)
          t->failures.push_back(fmt::format("{}:{}: {}", text_of(f, "file"),
                                            static_cast<int>(number_of(f, "line")), text_of(f, "text")));
    if (badness(*v) < badness(t->verdict)) return;
    t->verdict = *v;
    t->reason = text_of(r, "reason");
    t->rerun = text_of(r, "rerun");
  }

  void evidence(const nlohmann::json& r) {
    if (TestResult* t = test(r))
      t->evidence.push_back({text_of(r, "kind"), r.value("detail", nlohmann::json::object())});
  }
  void metric(const nlohmann::json& r) {
    if (TestResult* t = test(r))
      t->metrics.push_back(
          {{"name", text_of(r, "name")}, {"value", number_of(r, "value")}, {"unit", text_of(r, "unit")}});
  }
  void retries(const nlohmann::json& r) {
    if (TestResult* t = test(r)) t->retries = text_of(r, "text");
  }

  // One line a level: what held, and what was not shown and why.
  void prove() {
    for (int level : run_.levels) {
      int total = 0, clean = 0, ran = 0, runs = 0;
      std::map<std::string, int> why;
      for (const TestResult& t : run_.results) {
        if (t.level != level) continue;
        ++total;
        bool did_run =
            t.verdict != Verdict::skip && t.verdict != Verdict::blocked && t.verdict != Verdict::not_run;
        ran += did_run ? 1 : 0;
        clean += t.verdict == Verdict::pass ? 1 : 0;
        runs += t.verdict == Verdict::pass ? t.passed : 0;
        if (!did_run)
          ++why[fmt::format("{}: {}", to_string(t.verdict), t.reason.empty() ? "no reason given" : t.reason)];
        else if (t.verdict != Verdict::pass)
          ++why[fmt::format("{}: {}", to_string(t.verdict), t.id)];
      }
      if (total == 0) {
        run_.not_proved.push_back(fmt::format("level {}: no test selected", level));
        continue;
      }
      if (clean > 0) {
        std::string bound = runs > clean ? fmt::format(", {} runs without failure", runs) : "";
        run_.proved.push_back(fmt::format("level {}: {} of {} tests passed{}", level, clean, total, bound));
      }
      if (clean == total) continue;
      std::vector<std::string> reasons;
      for (auto& [reason, n] : why) reasons.push_back(n > 1 ? fmt::format("{} x {}", n, reason) : reason);
      run_.not_proved.push_back(fmt::format("level {}: {} of {} run, {} not passed ({})", level, ran, total,
                                            total - clean, fmt::join(reasons, "; ")));
    }
    for (const TestResult& t : run_.results)
      if (t.runs > 0 && t.runs < run_.repeat && !t.stood_in)
        run_.not_proved.push_back(fmt::format("{}: {} of {} runs done", t.id, t.runs, run_.repeat));
    for (const TestResult& t : run_.results)
      if (t.passed > 1 && t.verdict == Verdict::pass)
        run_.proved.push_back(fmt::format("{}: 0 of {} failed, failure rate < {:.2g}% at 95%", t.id, t.passed,
                                          100 * failure_bound(t.passed)));
  }

  RunSummary& run_;
  std::map<std::string, size_t> index_;
  std::string running_, danger_;
  size_t notes_ = 0;
  uint64_t next_ = 0;  // sequence number
};

}  // namespace

bool is_failure(Verdict v) {
  return v == Verdict::fail || v == Verdict::crash || v == Verdict::timeout || v == Verdict::device_lost;
}

double failure_bound(int clean) { return clean <= 0 ? 1.0 : 1.0 - std::pow(0.05, 1.0 / clean); }

const TestResult* RunSummary::find(const std::string& id) const {
  for (const TestResult& t : results)
    if (t.id == id) return &t;
  return nullptr;
}

RunSummary summarize(const Journal& journal) {
  RunSummary run;
  Folder folder(run);
  for (auto& record : journal.records) folder.take(record);
  folder.finish();
  for (auto& p : journal.problems)
    run.notes.push_back(fmt::format("journal line {} passed over: {}", p.line, p.text));
  if (journal.torn) run.notes.push_back("the journal's last line was torn and is dropped");
  return run;
}

int exit_code(const RunSummary& run) {
  auto n = [&](Verdict v) {
    auto it = run.counts.find(v);
    return it == run.counts.end() ? 0 : it->second;
  };
  if (run.interrupted) return 130;
  if (run.stopped_lost || n(Verdict::device_lost) > 0) return 3;
  if (n(Verdict::fail) + n(Verdict::warn) + n(Verdict::crash) + n(Verdict::timeout) > 0) return 1;
  if (n(Verdict::blocked) + n(Verdict::not_run) > 0 || n(Verdict::pass) == 0) return 125;
  if (!run.finished) return 125;  // what is left may say anything
  for (int level : run.levels) {
    bool passed = std::any_of(run.results.begin(), run.results.end(),
                              [&](auto& t) { return t.level == level && t.verdict == Verdict::pass; });
    if (!passed) return 125;
  }
  return 0;
}

}  // namespace kz
