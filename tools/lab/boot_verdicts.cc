// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/boot_verdicts.h"

#include <fmt/format.h>

#include <filesystem>

#include "tools/journal/reader.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/runner/process.h"

namespace kz::lab {
namespace fs = std::filesystem;
namespace {

// Exit codes of `kangzao run` whose meaning the tests' own verdicts hold (docs/verdicts.md).
bool tests_tell(int status) { return status == 0 || status == 1 || status == 3 || status == 125; }

StepVerdict judge_ended(const Step& s, const std::string& directory, const GuestRun& run) {
  double seconds = s.end - s.begin;
  if (s.status == 0 || (s.name == "run" && run.ended && tests_tell(s.status)))
    return {s.name, Verdict::pass, "", seconds};
  std::string said = last_line(content_of(directory + "/" + s.name + ".log"));
  bool could_not = s.name == "run" && s.status == 125;
  return {s.name, could_not ? Verdict::blocked : Verdict::fail, fmt::format("exit {}: {}", s.status, said),
          seconds};
}

StepVerdict judge_power_off(const Step& last) {
  if (last.name == "poweroff") return {"poweroff", Verdict::pass};
  if (last.end < 0) return {last.name, Verdict::crash, "the guest powered off in the middle of it"};
  return {"poweroff", Verdict::fail, fmt::format("the guest powered off after {}, unasked", last.name)};
}

// What init says on the console where the guest has no way to tell more.
std::string no_share(const std::string& directory) {
  std::string serial = content_of(directory + "/serial.log");
  auto at = serial.find("lab: no share");
  return at == std::string::npos ? "" : serial.substr(at + 5, serial.find_first_of("\r\n", at) - at - 5);
}

}  // namespace

GuestRun read_guest_run(const std::string& directory) {
  GuestRun run;
  try {
    for (auto& r : read_journal(directory).records) {
      std::string type = text_of(r, "type");
      run.begun |= type == "run-start";
      run.ended = type == "run-end";
      if (type == "test-start") run.test = text_of(r, "id");
      if (type == "verdict" || type == "interrupted") run.test.clear();
    }
  } catch (const std::exception&) {
    return {};  // no journal, or none that says anything
  }
  return run;
}

bool take_up_run(const std::string& folder, const std::string& boot) {
  std::string run = folder + "/run", aside = folder + "/run-before-" + boot;
  if (read_guest_run(run).begun) return true;
  if (!fs::exists(run)) return false;
  fs::remove_all(aside);
  fs::rename(run, aside);
  return false;
}

void mark_interrupted(const std::string& directory) {
  std::string test = read_guest_run(directory).test;
  if (test.empty()) return;
  JournalWriter(directory, JournalWriter::Mode::append).write({{"type", "interrupted"}, {"id", test}}, true);
}

std::string broken_test(const std::vector<Step>& reached, const BootEnd& end, const GuestRun& run) {
  bool running = !reached.empty() && reached.back().name == "run" && reached.back().end < 0;
  return end.broken() && running ? run.test : "";
}

std::vector<StepVerdict> judge_steps(const std::string& directory, const BootEnd& end, const GuestRun& run) {
  if (std::string why = no_share(directory); !why.empty()) return {{"boot", Verdict::blocked, why}};
  auto reached = read_steps(directory);
  if (reached.empty()) reached.push_back({.name = "boot"});
  std::vector<StepVerdict> out;
  for (auto& s : reached)
    if (s.end >= 0) out.push_back(judge_ended(s, directory, run));
  const Step& last = reached.back();
  if (end.how == BootEnd::How::off) out.push_back(judge_power_off(last));
  if (!end.broken() || !broken_test(reached, end, run).empty()) return out;
  Verdict verdict = end.how == BootEnd::How::late ? Verdict::timeout : Verdict::crash;
  if (last.end < 0)
    out.push_back({last.name, verdict, end.text});
  else
    out.push_back({"poweroff", verdict, fmt::format("after {}: {}", last.name, end.text)});
  return out;
}

}  // namespace kz::lab
