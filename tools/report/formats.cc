// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/report/formats.h"

#include <fmt/format.h>

namespace kz {
namespace {

constexpr int report_version = 1;

bool did_not_run(Verdict v) { return v == Verdict::skip || v == Verdict::blocked || v == Verdict::not_run; }

// XML 1.0, section 2.2, allows no control characters but tab and line ends, escaped or not, and no U+FFFE,
// U+FFFF.
std::string xml(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    // U+FFFE and U+FFFF, in UTF-8.
    if (c == 0xef && text.compare(i, 2, "\xef\xbf") == 0 && i + 2 < text.size() &&
        static_cast<unsigned char>(text[i + 2]) >= 0xbe) {
      out += '?';
      i += 2;
      continue;
    }
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c >= 0x20 || c == '\n' || c == '\t' ? static_cast<char>(c) : '?';
    }
  }
  return out;
}

std::string group_of(const std::string& id) { return id.substr(0, id.find_last_of('.')); }
std::string name_of(const std::string& id) { return id.substr(id.find_last_of('.') + 1); }

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

// As a KTAP description that is one word and no directive.
std::string one_word(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f || c == '#') c = '?';
  return text;
}

std::string junit_case(const TestResult& t) {
  std::string head = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"",
                                 xml(group_of(t.id)), xml(name_of(t.id)), t.seconds);
  std::string why = fmt::format("{}: {}", to_string(t.verdict), t.reason);
  std::string body;
  for (auto& f : t.failures) body += f + "\n";
  if (!t.rerun.empty()) body += "again: " + t.rerun + "\n";
  if (did_not_run(t.verdict))
    return head + fmt::format(">\n      <skipped message=\"{}\"/>\n    </testcase>\n", xml(why));
  if (t.verdict == Verdict::pass) return head + "/>\n";
  bool failed = t.verdict == Verdict::fail || t.verdict == Verdict::warn;
  const char* tag = failed ? "failure" : "error";
  return head + fmt::format(">\n      <{0} message=\"{1}\" type=\"{2}\">{3}</{0}>\n    </testcase>\n", tag,
                            xml(why), to_string(t.verdict), xml(body));
}

}  // namespace

nlohmann::json to_json(const RunSummary& run) {
  nlohmann::json out = {{"schema", report_version},
                        {"device", run.device},
                        {"profile", run.profile},
                        {"seed", run.seed},
                        {"environment", run.environment},
                        {"results", nlohmann::json::array()},
                        {"counts", nlohmann::json::object()},
                        {"proved", run.proved},
                        {"not_proved", run.not_proved},
                        {"notes", run.notes},
                        {"exit", exit_code(run)}};
  for (Verdict v : all_verdicts) {
    auto it = run.counts.find(v);
    out["counts"][std::string(to_string(v))] = it == run.counts.end() ? 0 : it->second;
  }
  for (const TestResult& t : run.results) {
    nlohmann::json r = {{"id", t.id},           {"level", t.level},   {"verdict", to_string(t.verdict)},
                        {"seconds", t.seconds}, {"reason", t.reason}, {"runs", t.runs}};
    if (!t.failures.empty()) r["failures"] = t.failures;
    if (!t.rerun.empty()) r["rerun"] = t.rerun;
    if (!t.retries.empty()) r["retries"] = t.retries;
    if (!t.metrics.empty()) r["metrics"] = t.metrics;
    for (const Evidence& e : t.evidence) r["evidence"].push_back({{"kind", e.kind}, {"detail", e.detail}});
    out["results"].push_back(std::move(r));
  }
  return out;
}

std::string to_junit(const RunSummary& run) {
  std::map<std::string, std::vector<const TestResult*>> groups;
  for (const TestResult& t : run.results) groups[group_of(t.id)].push_back(&t);
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"kangzao\">\n";
  for (auto& [name, tests] : groups) {
    int failures = 0, errors = 0, skipped = 0;
    double seconds = 0;
    std::string cases;
    for (const TestResult* t : tests) {
      bool failed = t->verdict == Verdict::fail || t->verdict == Verdict::warn;
      skipped += did_not_run(t->verdict) ? 1 : 0;
      failures += failed ? 1 : 0;
      errors += !failed && !did_not_run(t->verdict) && t->verdict != Verdict::pass ? 1 : 0;
      seconds += t->seconds;
      cases += junit_case(*t);
    }
    out += fmt::format(
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" "
        "time=\"{:.3f}\">\n{}  </testsuite>\n",
        xml(name), tests.size(), failures, errors, skipped, seconds, cases);
  }
  return out + "</testsuites>\n";
}

std::string to_ktap(const RunSummary& run) {
  std::string out = fmt::format("KTAP version 1\n1..{}\n", run.results.size());
  size_t n = 0;
  for (const TestResult& t : run.results) {
    bool ok = t.verdict == Verdict::pass || did_not_run(t.verdict);
    std::string directive;
    if (did_not_run(t.verdict))
      directive = fmt::format(" # SKIP {}: {}", to_string(t.verdict), one_line(t.reason));
    else if (t.verdict == Verdict::timeout)
      directive = " # TIMEOUT";
    for (auto& f : t.failures) out += "# " + one_line(f) + "\n";
    out += fmt::format("{} {} {}{}\n", ok ? "ok" : "not ok", ++n, one_word(t.id), directive);
  }
  return out;
}

}  // namespace kz
