// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/judge.h"

#include <fmt/format.h>

#include <map>

namespace kz::gauntlet {
namespace {

bool is_alarm(Verdict v) {
  return v == Verdict::fail || v == Verdict::warn || v == Verdict::crash || v == Verdict::timeout ||
         v == Verdict::device_lost;
}

constexpr std::string_view plain_log = "kernel log";

std::string detector_of(Verdict v, const std::vector<Evidence>& facts) {
  std::string_view kernel;
  std::string kind;
  for (const Evidence& e : facts) {
    if (e.kind == ev::kernel_log) {
      auto who = kernel_detector(text_of(e.detail, "line"));
      if (kernel.empty() || kernel == plain_log) kernel = who;
    } else if (kind.empty() && !(e.kind == ev::driver && triage::is_driver_note(text_of(e.detail, "what")))) {
      kind = e.kind;
    }
  }
  if (!kernel.empty() && kind.empty()) return std::string(kernel);
  if (v == Verdict::crash || v == Verdict::timeout || v == Verdict::device_lost)
    return kind.empty() ? fmt::format("runner ({})", to_string(v)) : fmt::format("our check ({})", kind);
  return kind.empty() ? "our check" : fmt::format("our check ({})", kind);
}

}  // namespace

std::string_view kernel_detector(std::string_view line) {
  using Words = std::pair<std::string_view, std::string_view>;
  static constexpr Words known[] = {{"KASAN", "KASAN"},
                                    {"KCSAN", "KCSAN"},
                                    {"UBSAN", "UBSAN"},
                                    {"kmemleak", "kmemleak"},
                                    {"DMA-API", "DMA-API"},
                                    {"circular locking", "lockdep"},
                                    {"recursive locking", "lockdep"},
                                    {"lock held when", "lockdep"},
                                    {"inconsistent lock state", "lockdep"},
                                    {"suspicious RCU usage", "lockdep"},
                                    {"sleeping function called", "DEBUG_ATOMIC_SLEEP"},
                                    {"blocked for more than", "hung task"}};
  for (auto& [words, who] : known)
    if (line.find(words) != std::string_view::npos) return who;
  return plain_log;
}

Judgement judge(const Journal& journal, const std::set<std::string>& ignored) {
  Judgement out;
  std::vector<Evidence> facts;
  std::vector<triage::TestVerdict> verdicts;
  std::map<std::string, std::vector<Evidence>> of_test;
  double start = 0;
  for (const auto& r : journal.records) {
    std::string type = text_of(r, "type"), id = text_of(r, "id");
    if (type == "run-start") start = number_of(r, "mono");
    if (ignored.contains(id)) continue;
    if (type == "evidence") {
      facts.push_back({text_of(r, "kind"), r.value("detail", nlohmann::json::object())});
      of_test[id].push_back(facts.back());
    }
    if (type != "verdict") continue;
    auto v = parse_verdict(text_of(r, "verdict"));
    if (!v) continue;
    verdicts.push_back({id, *v, text_of(r, "reason")});
    out.passed += *v == Verdict::pass;
    if (*v == Verdict::blocked) out.blocked.push_back(id + ": " + text_of(r, "reason"));
    if (is_alarm(*v))
      out.alarms.push_back({id, *v, text_of(r, "reason"), detector_of(*v, of_test[id]),
                            (number_of(r, "mono") - start) * 1e-9});
  }
  out.diagnosis = triage::classify(facts, verdicts);
  return out;
}

CleanRun clean_run(const Judgement& said, double seconds, int exit_status, const std::string& broken_off) {
  CleanRun run{.seconds = seconds, .passed = said.passed, .alarms = {}};
  for (const Alarm& a : said.alarms)
    run.alarms.push_back(fmt::format("{}: {}: {}", a.test, to_string(a.verdict), a.reason));
  for (const auto& b : said.blocked) run.alarms.push_back("blocked: " + b);
  if (!broken_off.empty())
    run.alarms.push_back(broken_off);
  else if (exit_status != 0 && run.alarms.empty())
    run.alarms.push_back(
        fmt::format("the run ended with exit status {}, {} tests passed", exit_status, said.passed));
  return run;
}

}  // namespace kz::gauntlet
