// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tools/kangzao/runner/kernel_log.h"
#include "tools/report/terminal.h"

namespace kz::lab {
namespace fs = std::filesystem;
namespace {

// "6,339,5140900,-;text" of /dev/kmsg. Lines of another form go on with the record before them.
std::string text_of_record(const std::string& line) {
  auto at = line.find(';');
  bool starts = !line.empty() && std::isdigit(static_cast<unsigned char>(line[0])) != 0;
  return starts && at < 64 ? line.substr(at + 1) : "";
}

// "[    5.140900][   T12] text" of a console; kernels without CONFIG_PRINTK_TIME write the text alone.
std::string text_of_console(std::string line) {
  while (!line.empty() && line.back() == '\r') line.pop_back();
  if (!line.starts_with("[")) return line;
  auto at = line.find("] ");
  return at < 32 ? line.substr(at + 2) : line;
}

constexpr int quiet_level = 7;  // only what the kernel reports of itself counts at this level

// Reports that counts_against() leaves to whoever knows that no test asked for them.
bool is_debug_report(const std::string& text) {
  for (auto word : {"DMA-API: ", "DMAR: [DMA ", "IO_PAGE_FAULT",
                    "sleeping function called from invalid context", "kmemleak: ", "possible deadlock",
                    "DEBUG_LOCKS_WARN_ON", "unchecked MSR access", "scheduling while atomic"})
    if (text.find(word) != std::string::npos)
      return text.find("DMA-API: preallocated") == std::string::npos &&
             text.find("debugging enabled") == std::string::npos &&
             text.find("kmemleak: Kernel memory leak detector initialized") == std::string::npos &&
             text.find("Automatic memory scanning thread") == std::string::npos;
  return false;
}

// Documentation/admin-guide/tainted-kernels.rst. A module from outside the tree sets others of these bits.
constexpr struct {
  unsigned bit;
  const char* what;
} taints[] = {{5, "B (bad page)"}, {7, "D (it died)"}, {9, "W (warning)"}, {14, "L (soft lockup)"}};

// Which of them the kernel got between "taint before N" and "taint after N" of boot-N/state.
std::string new_taint(const std::string& directory, unsigned long meant) {
  uint64_t before = 0, after = 0;
  std::ifstream in(directory + "/state");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what, when;
    words >> what >> when;
    if (what == "taint") words >> (when == "before" ? before : after);
  }
  std::string out;
  for (auto& t : taints)
    if (((after & ~before & ~meant) >> t.bit & 1) != 0) out += std::string(out.empty() ? "" : ", ") + t.what;
  return out.empty() ? "" : "the kernel is tainted: " + out;
}

std::string kernel_of(const std::string& id) { return id.substr(0, id.find('.')); }

std::string group_of_id(const std::string& id) {
  auto first = id.find('.');
  return id.substr(first + 1, id.find('.', first + 1) - first - 1);
}

}  // namespace

std::vector<Step> read_steps(const std::string& directory) {
  std::vector<Step> out;
  std::ifstream in(directory + "/state");
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // no newline yet
    std::istringstream words(line);
    std::string what, name;
    words >> what >> name;
    if (what == "begin") {
      Step s{.name = name};
      words >> s.begin;
      out.push_back(s);
    } else if (what == "end" && !out.empty() && out.back().name == name) {
      words >> out.back().status >> out.back().end;
    }
  }
  return out;
}

std::string content_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> kernel_reports(const std::string& directory, const std::set<std::string>& expected,
                                        size_t most) {
  std::vector<std::string> out;
  for (std::string name : {"/kernel.log", "/serial.log"}) {
    std::ifstream in(directory + name);
    for (std::string line; out.size() < most && std::getline(in, line);) {
      std::string text = printable(name == "/kernel.log" ? text_of_record(line) : text_of_console(line));
      if ((counts_against(text, quiet_level, {}) || is_debug_report(text)) && !expected.contains(text) &&
          std::ranges::find(out, text) == out.end())
        out.push_back(text);
    }
  }
  const unsigned long meant = expected.empty() ? 0 : taint_of_warning;
  if (std::string taint = new_taint(directory, meant); !taint.empty()) out.push_back(taint);
  return out;
}

std::string log_since(const std::string& directory, const std::string& step) {
  std::ifstream in(directory + "/kernel.log");
  std::string out;
  for (std::string line; std::getline(in, line);) {
    std::string text = text_of_record(line);
    if (text == "lab: begin " + step) out.clear();
    if (!text.empty()) out += text + "\n";
  }
  return out;
}

std::string log_gap(const std::string& directory) {
  std::ifstream in(directory + "/kernel.log");
  uint64_t lost = 0;
  bool whole = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("lost ")) lost += std::strtoull(line.c_str() + 5, nullptr, 10);
    whole |= text_of_record(line) == "lab: end of " + fs::path(directory).filename().string();
  }
  if (lost != 0)
    return fmt::format("{} records of the kernel log were overwritten before they were read", lost);
  auto steps = read_steps(directory);
  bool due = !steps.empty() && steps.back().name == "poweroff";
  return due && !whole ? "the kernel log was not read to its end" : "";
}

std::string panic_line(const std::string& directory) {
  std::ifstream in(directory + "/serial.log");
  for (std::string line; std::getline(in, line);)
    if (auto at = line.find("Kernel panic"); at != std::string::npos) return printable(line.substr(at));
  return {};
}

std::string MatrixCell::text() const {
  int total = 0, bad = 0;
  auto n = [&](Verdict v) { return counts.contains(v) ? counts.at(v) : 0; };
  for (auto& [v, count] : counts) total += count;
  bad = n(Verdict::fail) + n(Verdict::crash) + n(Verdict::timeout) + n(Verdict::device_lost);
  if (total == 0) return "-";
  if (bad > 0) return fmt::format("FAIL {}/{}", bad, total);
  if (int warn = n(Verdict::warn)) return fmt::format("warn {}/{}", warn, total);
  if (int stuck = n(Verdict::blocked) + n(Verdict::not_run)) return fmt::format("none {}/{}", stuck, total);
  if (n(Verdict::pass) == 0) return "skip";
  return n(Verdict::skip) > 0 ? fmt::format("ok {} skip {}", n(Verdict::pass), n(Verdict::skip))
                              : fmt::format("ok {}", n(Verdict::pass));
}

std::string matrix(const RunSummary& run, const std::vector<KernelColumn>& kernels,
                   const std::vector<std::string>& steps) {
  std::map<std::string, std::map<std::string, MatrixCell>> cells;  // group, kernel
  for (auto& t : run.results) ++cells[group_of_id(t.id)][kernel_of(t.id)].counts[t.verdict];
  size_t width = 14;
  for (auto& k : kernels) width = std::max({width, k.name.size(), k.release.size()});
  auto line = [&](const std::string& head, auto text) {
    std::string out = fmt::format("{:<14}", head);
    for (auto& k : kernels) out += fmt::format("  {:<{}}", text(k), width);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + "\n";
  };
  std::string out = line("", [](auto& k) { return k.name; }) + line("", [](auto& k) { return k.release; });
  auto row = [&](const std::string& group) {
    out += line(group, [&](auto& k) { return cells.at(group)[k.name].text(); });
  };
  for (auto& s : steps)
    if (cells.contains(s)) row(s);
  for (auto& [group, _] : cells)
    if (std::ranges::find(steps, group) == steps.end()) row(group);
  out += line("first test", [](auto& k) {
    return k.first_test_s < 0 ? std::string("-") : fmt::format("{:.1f} s", k.first_test_s);
  });
  return out;
}

nlohmann::json matrix_json(const RunSummary& run, const std::vector<KernelColumn>& kernels) {
  auto out = nlohmann::json::array();
  for (auto& k : kernels) {
    nlohmann::json groups = nlohmann::json::object();
    for (auto& t : run.results)
      if (kernel_of(t.id) == k.name) {
        auto& cell = groups[group_of_id(t.id)];
        std::string v(to_string(t.verdict));
        cell[v] = cell.value(v, 0) + 1;
      }
    out.push_back({{"name", k.name},
                   {"release", k.release},
                   {"groups", groups},
                   {"first_test_s", k.first_test_s < 0 ? nlohmann::json() : nlohmann::json(k.first_test_s)}});
  }
  return out;
}

}  // namespace kz::lab
