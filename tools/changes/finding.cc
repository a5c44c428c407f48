// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/changes/changes.h"
#include "tools/changes/table.h"
#include "tools/changes/words.h"

namespace kz::changes {

std::string_view to_string(Confidence c) {
  return c == Confidence::high ? "high" : c == Confidence::medium ? "medium" : "low";
}

std::vector<Finding> sorted_findings(std::string_view log, std::vector<Finding> findings,
                                     const std::vector<size_t>& positions) {
  std::vector<size_t> order(findings.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return positions[i]; });
  LineCounter lines(log);
  for (size_t i : order)
    findings[i].log_line = findings[i].evidence.starts_with("vermagic: ")
                               ? 0
                               : lines.line_of(std::min(positions[i], log.size()));
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    return findings[i].harmless ? 2 : findings[i].name == "not_known" ? 1 : 0;
  });
  std::vector<Finding> out;
  for (size_t i : order) out.push_back(std::move(findings[i]));
  return out;
}

nlohmann::json to_json(const Change& c) {
  return {{"symbol", c.symbol},       {"kind", c.kind},
          {"since", c.since},         {"not_before", c.not_before},
          {"old_since", c.old_since}, {"new_since", c.new_since},
          {"backport", c.backport},   {"before", c.before},
          {"after", c.after},         {"cure", c.cure},
          {"source", c.source},       {"include", c.include},
          {"old", c.old_code},        {"new", c.new_code},
          {"verified", c.verified},   {"unexported", c.unexported}};
}

nlohmann::json to_json(const Finding& f) {
  nlohmann::json j = {{"name", f.name},
                      {"symbol", f.symbol},
                      {"what", f.what},
                      {"cause", f.cause},
                      {"cure", f.cure},
                      {"confidence", to_string(f.confidence)},
                      {"file", f.file},
                      {"file_line", f.file_line},
                      {"evidence", {{"line", f.log_line}, {"text", f.evidence}}},
                      {"count", f.count},
                      {"harmless", f.harmless},
                      {"change", nullptr}};
  if (f.change != nullptr) j["change"] = to_json(*f.change);
  return j;
}

std::string to_text(const Finding& f) {
  std::string out = fmt::format("{} ({}{})\n", f.name, f.harmless ? "remark, " : "", to_string(f.confidence));
  auto line = [&](std::string_view name, std::string_view text) {
    bool first = true;
    for (std::string_view part : split(text, '\n')) {
      if (!text.empty()) out += fmt::format("  {:<9}{}\n", first ? name : "", plain(part));
      first = false;
    }
  };
  line("failed", f.what);
  line("why", f.cause);
  line("cure", f.cure);
  if (f.change != nullptr && f.change->kind == "namespace" && !f.change->old_code.empty())
    line("test", fmt::format("only older kernels compile: {}", f.change->old_code));
  else if (f.change != nullptr && !f.change->new_code.empty())
    line("test", fmt::format("compile against the headers: {}", f.change->new_code));
  if (f.change != nullptr) line("source", f.change->source);
  line("seen", f.log_line
                   ? fmt::format("line {}{}: {}", f.log_line,
                                 f.count > 1 ? fmt::format(" (and {} more)", f.count - 1) : "", f.evidence)
                   : f.evidence);
  return out;
}

}  // namespace kz::changes
