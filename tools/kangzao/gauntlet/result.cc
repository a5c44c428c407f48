// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/result.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kz::gauntlet {

using nlohmann::json;

bool RowResult::right_class() const {
  size_t at = 0;
  while (at <= expected.size()) {
    size_t end = std::min(expected.find('|', at), expected.size());
    if (expected.compare(at, end - at, cls) == 0) return true;
    at = end + 1;
  }
  return false;
}

size_t GauntletResult::total() const {
  return static_cast<size_t>(
      std::ranges::count_if(rows, [](const auto& r) { return r.unplantable.empty(); }));
}
size_t GauntletResult::caught() const {
  return static_cast<size_t>(std::ranges::count_if(rows, [](const auto& r) { return r.caught; }));
}
size_t GauntletResult::right() const {
  return static_cast<size_t>(
      std::ranges::count_if(rows, [](const auto& r) { return r.caught && r.right_class(); }));
}
size_t GauntletResult::ours_on_stock() const {
  return static_cast<size_t>(std::ranges::count_if(rows, [](const auto& r) {
    return r.caught && !r.kernel.empty() && !r.kernel.ends_with("-debug") &&
           r.detector.starts_with("our check");
  }));
}
size_t GauntletResult::false_alarms() const {
  return static_cast<size_t>(std::ranges::count_if(clean, [](const auto& c) { return !c.alarms.empty(); }));
}

int GauntletResult::exit_code() const {
  if (total() == 0 && clean.empty()) return 125;
  return caught() == total() && right() == total() && false_alarms() == 0 ? 0 : 1;
}

json to_json(const RowResult& r) {
  json j = {{"id", r.id},
            {"caught", r.caught},
            {"by", r.by},
            {"detector", r.detector},
            {"seconds", r.seconds},
            {"class", r.cls},
            {"expected_class", r.expected},
            {"right_class", r.caught && r.right_class()},
            {"confidence", r.confidence},
            {"reason", r.reason},
            {"fault", r.fault}};
  if (!r.kernel.empty()) j["kernel"] = r.kernel;
  if (!r.unplantable.empty()) j["unplantable"] = r.unplantable;
  return j;
}

RowResult row_from_json(const json& j) {
  RowResult r;
  r.id = j.at("id");
  r.caught = j.at("caught");
  r.by = j.at("by").get<std::vector<std::string>>();
  r.detector = j.at("detector");
  r.seconds = j.at("seconds");
  r.cls = j.at("class");
  r.expected = j.at("expected_class");
  r.confidence = j.value("confidence", "");
  r.reason = j.value("reason", "");
  r.fault = j.value("fault", json::object());
  r.kernel = j.value("kernel", "");
  r.unplantable = j.value("unplantable", "");
  return r;
}

json to_json(const CleanRun& c) {
  json j = {{"seconds", c.seconds}, {"passed", c.passed}, {"alarms", c.alarms}};
  if (!c.kernel.empty()) j["kernel"] = c.kernel;
  return j;
}

CleanRun clean_from_json(const json& j) {
  return {j.at("seconds"), j.at("passed"), j.at("alarms").get<std::vector<std::string>>(),
          j.value("kernel", "")};
}

json to_json(const GauntletResult& g) {
  json rows = json::array(), unplantable = json::array(), missed = json::array(), clean = json::array();
  for (const auto& r : g.rows) {
    if (!r.unplantable.empty()) {
      unplantable.push_back({{"id", r.id}, {"reason", r.unplantable}});
      continue;
    }
    rows.push_back(to_json(r));
    if (!r.caught) missed.push_back(r.id);
  }
  for (const auto& c : g.clean) clean.push_back(to_json(c));
  json j = {{"schema", "kangzao-gauntlet-1"},
            {"build", g.build},
            {"rows", rows},
            {"caught", g.caught()},
            {"total", g.total()},
            {"right_class", g.right()},
            {"missed", missed},
            {"clean_runs", g.clean.size()},
            {"false_alarms", g.false_alarms()},
            {"clean", clean},
            {"ignored_tests", g.ignored},
            {"unplantable", unplantable}};
  if (g.in_lab()) j["ours_on_stock"] = g.ours_on_stock();
  if (g.vary) j["vary"] = *g.vary;
  return j;
}

std::string row_line(const RowResult& r) {
  if (!r.unplantable.empty()) return fmt::format("{:4} cannot be planted: {}", r.id, r.unplantable);
  if (!r.caught) return fmt::format("{:4} MISSED   {:>6.1f} s", r.id, r.seconds);
  std::string by = r.by.front() + (r.by.size() > 1 ? fmt::format(" and {} more", r.by.size() - 1) : "");
  std::string cls = r.right_class() ? r.cls : fmt::format("{} (WRONG, expected {})", r.cls, r.expected);
  std::string who = r.kernel.empty() ? r.detector : fmt::format("{} on {}", r.detector, r.kernel);
  return fmt::format("{:4} caught   {:>6.1f} s  {:<32} {:<40} {}", r.id, r.seconds, by, who, cls);
}

std::string to_terminal(const GauntletResult& g) {
  std::string out;
  for (const auto& r : g.rows) out += row_line(r) + "\n";
  for (size_t i = 0; i < g.clean.size(); ++i) {
    const CleanRun& c = g.clean[i];
    std::string where = c.kernel.empty() ? "" : " on " + c.kernel;
    for (const auto& a : c.alarms) out += fmt::format("clean run {}{}: FALSE ALARM: {}\n", i + 1, where, a);
  }
  if (!g.ignored.empty())
    out += fmt::format("not counted, because not clean on a sound device: {}\n", fmt::join(g.ignored, ", "));
  out += fmt::format("caught {} of {}, right class {}, false alarms in {} of {} clean runs\n", g.caught(),
                     g.total(), g.right(), g.false_alarms(), g.clean.size());
  if (g.in_lab()) out += fmt::format("our own checks on a stock kernel caught {}\n", g.ours_on_stock());
  return out;
}

}  // namespace kz::gauntlet
