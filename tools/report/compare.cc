// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tools/report/terminal.h"

namespace kz {
namespace {

using Medians = std::map<std::string, std::pair<double, std::string>>;

Medians medians(const RunSummary& run) {
  std::map<std::string, std::vector<double>> all;
  std::map<std::string, std::string> units;
  for (const TestResult& t : run.results)
    for (auto& m : t.metrics) {
      std::string name = t.id + " " + text_of(m, "name");
      all[name].push_back(number_of(m, "value"));
      units[name] = text_of(m, "unit");
    }
  Medians out;
  for (auto& [name, values] : all) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
    out[name] = {values[values.size() / 2], units[name]};
  }
  return out;
}

// {"kernel": {"release": "6.1"}} -> "kernel.release" = "6.1"
void flatten(const nlohmann::json& j, const std::string& prefix, std::map<std::string, std::string>& out) {
  if (j.is_object()) {
    for (auto& [key, value] : j.items()) flatten(value, prefix.empty() ? key : prefix + "." + key, out);
  } else {
    out[prefix] = j.is_string() ? j.get<std::string>()
                                : j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

template <class Map, class Get>
std::vector<Comparison::Change> differences(const Map& a, const Map& b, Get text) {
  std::vector<Comparison::Change> out;
  std::set<std::string> keys;
  for (auto& [k, v] : a) keys.insert(k);
  for (auto& [k, v] : b) keys.insert(k);
  for (auto& k : keys) {
    auto ia = a.find(k), ib = b.find(k);
    std::string ta = ia == a.end() ? "absent" : text(ia->second),
                tb = ib == b.end() ? "absent" : text(ib->second);
    if (ta != tb) out.push_back({k, ta, tb});
  }
  return out;
}

}  // namespace

Comparison compare(const RunSummary& before, const RunSummary& after, double threshold) {
  Comparison c;
  std::map<std::string, std::string> va, vb, ea, eb;
  for (auto& t : before.results) va[t.id] = to_string(t.verdict);
  for (auto& t : after.results) vb[t.id] = to_string(t.verdict);
  auto same = [](const std::string& s) { return s; };
  c.verdicts = differences(va, vb, same);
  flatten(before.environment, "", ea);
  flatten(after.environment, "", eb);
  ea["device"] = before.device;
  eb["device"] = after.device;
  auto how = [](const RunSummary& r) {
    return r.interrupted ? "interrupted" : r.finished ? "complete" : "not to its end";
  };
  ea["run"] = how(before);
  eb["run"] = how(after);
  c.environment = differences(ea, eb, same);
  Medians ma = medians(before), mb = medians(after);
  for (auto& [name, m] : ma) {
    auto it = mb.find(name);
    if (it == mb.end()) continue;
    double a = m.first, b = it->second.first, scale = std::max(std::abs(a), std::abs(b));
    if (scale > 0 && std::abs(a - b) > threshold * std::max(std::abs(a), 1e-12))
      c.metrics.push_back(
          {name, fmt::format("{:.4g} {}", a, m.second), fmt::format("{:.4g} {}", b, m.second)});
  }
  return c;
}

nlohmann::json to_json(const Comparison& c) {
  auto list = [](const std::vector<Comparison::Change>& changes) {
    nlohmann::json out = nlohmann::json::array();
    for (auto& x : changes) out.push_back({{"what", x.what}, {"before", x.before}, {"after", x.after}});
    return out;
  };
  return {{"schema", 1},
          {"verdicts", list(c.verdicts)},
          {"environment", list(c.environment)},
          {"metrics", list(c.metrics)}};
}

std::string to_terminal(const Comparison& c) {
  std::string out;
  auto section = [&](const char* title, const std::vector<Comparison::Change>& changes) {
    if (changes.empty()) return;
    out += std::string(title) + "\n";
    for (auto& x : changes)
      out += fmt::format("  {:<52} {} -> {}\n", printable(x.what), printable(x.before), printable(x.after));
  };
  section("verdicts that changed", c.verdicts);
  section("environment that changed", c.environment);
  section("measurements that moved", c.metrics);
  return c.same() ? "nothing changed\n" : out;
}

}  // namespace kz
