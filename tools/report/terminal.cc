// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/report/terminal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

namespace kz {
namespace {

constexpr const char* level_names[] = {"", "installs, identifies", "one task, right", "long load",
                                       "boundaries, faults"};

constexpr size_t most_quiet = 12;  // tests of one line that nobody need look at; all are in the JSON

std::string table(const RunSummary& run, bool colour) {
  std::string out = fmt::format("{:<28}", "level");
  for (Verdict v : all_verdicts) out += fmt::format("{:>12}", to_string(v));
  out += "\n";
  std::set<int> levels;
  for (const TestResult& t : run.results) levels.insert(t.level);
  for (int level : levels) {
    out += fmt::format("{:<28}",
                       fmt::format("{} {}", level, level >= 1 && level <= 4 ? level_names[level] : ""));
    for (Verdict v : all_verdicts) {
      int n = 0;
      for (const TestResult& t : run.results) n += t.level == level && t.verdict == v ? 1 : 0;
      std::string cell = fmt::format("{:>12}", n == 0 ? std::string(".") : std::to_string(n));
      out += n == 0 ? cell : colourise(v, cell, colour);
    }
    out += "\n";
  }
  return out;
}

// Tests that ended the same way for the same reason share a line.
std::string exceptions(const RunSummary& run, bool colour) {
  std::string out;
  std::map<std::pair<Verdict, std::string>, std::vector<const TestResult*>> groups;
  std::vector<std::pair<Verdict, std::string>> order;
  for (const TestResult& t : run.results) {
    if (t.verdict == Verdict::pass) continue;
    auto key = std::make_pair(t.verdict, t.reason);
    if (!groups.contains(key)) order.push_back(key);
    groups[key].push_back(&t);
  }
  for (auto& key : order) {
    auto& tests = groups[key];
    bool quiet = key.first == Verdict::skip || key.first == Verdict::blocked || key.first == Verdict::not_run;
    std::vector<std::string> ids;
    for (auto* t : tests) ids.push_back(printable(t->id));
    std::string more;
    if (quiet && ids.size() > most_quiet) {
      more = fmt::format(" and {} more", ids.size() - most_quiet);
      ids.resize(most_quiet);
    }
    out += fmt::format(
        "{} {}{}\n    {}\n", colourise(key.first, fmt::format("{:<11}", to_string(key.first)), colour),
        fmt::join(ids, " "), more, printable(key.second.empty() ? "no reason given" : key.second));
    if (quiet) continue;
    for (auto* t : tests) {
      for (size_t i = 0; i < t->failures.size() && i < 5; ++i)
        out += "      " + printable(t->failures[i]) + "\n";
      if (t->failures.size() > 5)
        out += fmt::format("      ... {} more in the journal\n", t->failures.size() - 5);
      for (size_t i = 0; i < t->evidence.size() && i < 3; ++i)
        out +=
            fmt::format("      saw {} {}\n", printable(t->evidence[i].kind),
                        printable(t->evidence[i]
                                      .detail.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                                      .substr(0, 300)));
      if (!t->retries.empty()) out += "      " + printable(t->retries) + "\n";
      if (!t->rerun.empty()) out += "      again: " + printable(t->rerun) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string out;
  for (unsigned char c : text) {
    if (c == '\n')
      out += "\n      ";
    else if (c < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", c);
    else
      out += static_cast<char>(c);
  }
  return out;
}

std::string colourise(Verdict v, const std::string& text, bool colour) {
  if (!colour) return text;
  const char* code = v == Verdict::pass                            ? "32"
                     : v == Verdict::skip || v == Verdict::not_run ? "2"
                     : v == Verdict::warn || v == Verdict::blocked ? "33"
                                                                   : "31";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string to_terminal(const RunSummary& run, const TerminalStyle& style) {
  std::string out = fmt::format("device {}, profile {}, seed {}\n\n", printable(run.device),
                                printable(run.profile), printable(run.seed));
  if (run.results.empty())
    out +=
        "nothing was selected: no test has all that was asked for; 'kangzao list' shows ids, levels and "
        "labels\n";
  else
    out += table(run, style.colour) + "\n";
  if (auto bad = exceptions(run, style.colour); !bad.empty()) out += bad + "\n";
  for (auto& line : run.proved) out += "proved      " + printable(line) + "\n";
  for (auto& line : run.not_proved) out += "not proved  " + printable(line) + "\n";
  for (auto& line : run.notes) out += "note        " + printable(line) + "\n";
  return out;
}

}  // namespace kz
