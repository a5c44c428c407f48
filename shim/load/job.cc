// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "shim/base/error.h"
#include "shim/load/job_keys.h"
#include "shim/uri.h"

namespace kz::load {
namespace {

constexpr size_t most_text = 1 << 20;

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view blank = " \t\r";
  auto first = s.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(blank) - first + 1);
}

// A comment begins with # or ; at the start of a line or behind a blank.
std::string_view without_comment(std::string_view line) {
  for (size_t i = 0; i < line.size(); ++i)
    if ((line[i] == '#' || line[i] == ';') && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t'))
      return line.substr(0, i);
  return line;
}

class PlanParser {
 public:
  PlanParser(std::string_view text, const std::string& source) {
    plan_.source = source;
    plan_.text = text;
  }

  Plan parse() {
    if (plan_.text.size() > most_text) fail("the profile is larger than 1 MiB", "");
    std::string_view rest = plan_.text;
    while (!rest.empty()) {
      ++line_;
      auto end = rest.find('\n');
      one_line(trimmed(without_comment(rest.substr(0, end))));
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    }
    close_job();
    if (plan_.jobs.empty())
      fail("there is no [job] in it", "write a section such as [copies] with mix=copy-in");
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(const std::string& detail, const std::string& remedy) const {
    throw Error({Errc::usage, "read load profile", fmt::format("{}:{}", plan_.source, std::max(line_, 1u)),
                 detail, remedy, 0});
  }

  void one_line(std::string_view line) {
    if (line.empty()) return;
    if (line.find_first_of(std::string_view("\0\x1b", 2)) != std::string_view::npos)
      fail("the line holds control characters", "a load profile is text");
    if (line.front() == '[') return section(line);
    auto equals = line.find('=');
    if (equals == std::string_view::npos) fail(fmt::format("'{}' is not key=value", line), "");
    std::string key(trimmed(line.substr(0, equals)));
    std::string_view value = trimmed(line.substr(equals + 1));
    if (!in_section_)
      fail(fmt::format("'{}' stands before any section", key), "begin with [global] or [job]");
    if (value.empty()) fail(fmt::format("'{}' has no value", key), "");
    Job& job = in_global_ ? global_ : job_;
    try {
      // A job that names devices means these and not the global ones as well.
      if (key == "device" && !own_devices_) job.devices.clear();
      own_devices_ |= key == "device";
      set_key(job, key, value);
    } catch (const Error& e) {
      fail(fmt::format("{}={}: {}", key, value, e.info().detail), e.info().remedy);
    }
  }

  void section(std::string_view line) {
    if (line.back() != ']') fail(fmt::format("'{}' has no closing bracket", line), "");
    std::string name(trimmed(line.substr(1, line.size() - 2)));
    if (name.empty()) fail("a section needs a name", "");
    close_job();
    in_section_ = true;
    own_devices_ = false;
    in_global_ = name == "global";
    if (in_global_) {
      if (!plan_.jobs.empty()) fail("[global] stands behind a job", "put it first");
      return;
    }
    for (const Job& other : plan_.jobs)
      if (other.name == name) fail(fmt::format("there are two jobs [{}]", name), "give each its own name");
    job_ = global_;
    job_.name = name;
    job_line_ = line_;
  }

  void close_job() {
    if (!in_section_ || in_global_) return;
    in_section_ = false;
    if (job_.devices.empty()) job_.devices.emplace_back("softtpu:");
    try {
      check_job(job_);
    } catch (const Error& e) {
      line_ = job_line_;
      fail(fmt::format("[{}]: {}", job_.name, e.info().detail), e.info().remedy);
    }
    plan_.jobs.push_back(job_);
  }

  Plan plan_;
  Job global_, job_;
  unsigned line_ = 0, job_line_ = 0;
  bool in_section_ = false, in_global_ = false, own_devices_ = false;
};

}  // namespace

std::string_view to_string(Op op) {
  constexpr std::string_view names[kOps] = {"nop",   "copy-in", "copy-out",  "copy-hbm", "matmul", "vector",
                                            "alloc", "free",    "telemetry", "check",    "io"};
  return names[static_cast<size_t>(op)];
}

unsigned Plan::processes() const {
  unsigned most = 1;
  for (const Job& job : jobs) most = std::max(most, job.processes);
  return most;
}

Plan parse_plan(std::string_view text, const std::string& source) { return PlanParser(text, source).parse(); }

Plan read_plan(const std::string& file) {
  auto take = [](std::istream& in) {
    std::string text;
    for (char piece[4096]; text.size() <= most_text && in.read(piece, sizeof piece).gcount() > 0;)
      text.append(piece, static_cast<size_t>(in.gcount()));
    return text;
  };
  if (file == "-") return parse_plan(take(std::cin), "standard input");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  int err = in.is_open() ? 0 : errno != 0 ? errno : EIO;
  std::error_code ec;
  if (err == 0 && std::filesystem::is_directory(file, ec)) err = EISDIR;
  std::string text = err == 0 ? take(in) : std::string();
  if (err == 0 && in.bad()) err = EIO;
  if (err != 0)
    throw Error({Errc::usage, "read load profile", file, std::strerror(err),
                 "name a job file (docs/load.md), or - for standard input", err});
  return parse_plan(text, file);
}

void use_devices(Plan& plan, const std::vector<std::string>& uris) {
  for (Job& job : plan.jobs)
    if (job.target == Target::device) {
      job.devices = uris;
      check_job(job);
    }
}

}  // namespace kz::load
