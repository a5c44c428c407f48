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

std::string detector_of(Verdict v, const std::vector<Evidence>& facts) {
  bool kernel = false;
  std::string kind;
  for (const Evidence& e : facts) {
    kernel |= e.kind == ev::kernel_log;
    if (kind.empty() && e.kind != ev::kernel_log) kind = e.kind;
  }
  if (v == Verdict::crash || v == Verdict::timeout || v == Verdict::device_lost)
    return kind.empty() ? fmt::format("runner ({})", to_string(v)) : fmt::format("our check ({})", kind);
  if (kernel && kind.empty()) return "kernel log";
  return kind.empty() ? "our check" : fmt::format("our check ({})", kind);
}

}  // namespace

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

}  // namespace kz::gauntlet
