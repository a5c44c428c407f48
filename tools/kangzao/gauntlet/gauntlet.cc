// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/gauntlet.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shim/base/error.h"
#include "shim/base/hash.h"
#include "shim/base/units.h"
#include "tools/kangzao/gauntlet/judge.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/gauntlet/row_run.h"
#include "tools/kangzao/runner/process.h"

namespace kz::gauntlet {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<std::string> choose_tests(const GauntletOptions& o) {
  Selection selection;
  selection.profile = o.profile;
  selection.filters = o.tests;
  auto tests = ordered_tests(select_tests(load_catalog(program_directory(), o.profile), selection));
  std::vector<std::string> ids;
  for (const auto& t : tests) ids.push_back(t.id);
  return ids;
}

// Everything that changes what a row's result can be.
std::string state_key(const GauntletOptions& o, const std::string& build,
                      const std::vector<std::string>& tests) {
  json j = {{"build", build}, {"full", o.full}, {"profile", o.profile},
            {"hbm", o.hbm},   {"seed", o.seed}, {"tests", tests}};
  if (o.vary) j["vary"] = *o.vary;
  Hash hash;
  hash.add(j.dump());
  return fmt::format("{:016x}", hash.value());
}

}  // namespace

std::string build_fingerprint(const std::string& directory) {
  std::vector<fs::path> programs;
  for (const auto& entry : fs::directory_iterator(directory)) {
    std::string name = entry.path().filename();
    if (name == "kangzao" || name == "softtpu" || name.starts_with("kz-test-"))
      programs.push_back(entry.path());
  }
  std::ranges::sort(programs);
  Hash hash;
  std::string buffer(1 << 20, '\0');
  for (const auto& p : programs) {
    hash.add(p.filename().string());
    std::ifstream in(p, std::ios::binary);
    while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0)
      hash.add(std::string_view(buffer).substr(0, static_cast<size_t>(in.gcount())));
  }
  return fmt::format("{}-{:016x}", KZ_VERSION, hash.value());
}

Gauntlet::Gauntlet(GauntletOptions options, std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)), tests_(choose_tests(options_)) {
  build_ = build_fingerprint(program_directory());
  state_.emplace(options_.state, state_key(options_, build_, tests_), build_);
  if (options_.resume) done_ = state_->read();
}

bool Gauntlet::clean_alone(const std::string& test, const std::map<std::string, std::string>& device) {
  std::string key = json(device).dump() + test;
  if (auto it = confirmed_.find(key); it != confirmed_.end()) return it->second;
  RunSpec spec{.device = device,
               .fault = {},
               .tests = {test},
               .profile = options_.profile,
               .seed = options_.seed,
               .directory = folders_->fresh()};
  auto result = run_once(spec, stop_);
  folders_->done(spec.directory, "sound");
  if (stop_()) return false;
  auto said = judge(*result.journal);
  bool clean = said.alarms.empty() && said.passed == 1;
  confirmed_[key] = clean;
  if (clean) return true;
  done_.ignored.insert(test);
  state_->add_ignored(test);
  say_(fmt::format("{} is not clean on a sound device: its alarms do not count", test));
  return false;
}

RowResult Gauntlet::run_row(const Planting& planting) {
  RowResult row{.id = planting.id, .fault = planting.fault, .expected = planting.expected};
  for (;;) {
    std::vector<std::string> tests;
    for (const auto& t : tests_)
      if (!done_.ignored.contains(t)) tests.push_back(t);
    RunSpec spec{.device = planting.device,
                 .fault = planting.fault,
                 .tests = tests,
                 .profile = options_.profile,
                 .seed = options_.seed,
                 .stop_on_fail = !options_.full,
                 .directory = folders_->fresh()};
    auto start = Clock::now();
    RunResult result = run_once(spec, stop_);
    folders_->done(spec.directory, row.id);
    if (stop_()) return row;
    row.unplantable = result.unplantable;
    if (!row.unplantable.empty()) return row;
    Judgement said = judge(*result.journal, done_.ignored);
    // An alarm counts only when the same test is silent on a sound device.
    bool counts = std::ranges::all_of(said.alarms,
                                      [&](const Alarm& a) { return clean_alone(a.test, planting.device); });
    if (!counts) {
      if (!options_.full) continue;
      said = judge(*result.journal, done_.ignored);
    }
    row.cls = to_string(said.diagnosis.cls);
    row.confidence = to_string(said.diagnosis.confidence);
    row.reason = said.diagnosis.reason;
    row.caught = !said.alarms.empty();
    row.seconds = row.caught ? said.alarms.front().seconds
                             : std::chrono::duration<double>(Clock::now() - start).count();
    if (row.caught) row.detector = said.alarms.front().detector;
    for (const Alarm& a : said.alarms) row.by.push_back(a.test);
    if (!row.caught && !said.blocked.empty()) row.reason = "blocked: " + said.blocked.front();
    if (!result.broken_off.empty()) say_(row.reason = result.broken_off);
    return row;
  }
}

CleanRun Gauntlet::run_clean(unsigned n) {
  auto start = Clock::now();
  RunSpec spec{.device = {{"hbm", options_.hbm}},
               .fault = {},
               .tests = tests_,
               .profile = options_.profile,
               .seed = options_.seed + n,
               .stop_on_fail = false,
               .directory = folders_->fresh()};
  RunResult run = run_once(spec, stop_);
  folders_->done(spec.directory, "clean");
  if (stop_()) return {};
  return clean_run(judge(*run.journal), std::chrono::duration<double>(Clock::now() - start).count(),
                   run.exit_status, run.broken_off);
}

GauntletResult Gauntlet::run(const std::function<bool()>& stop) {
  stop_ = stop;
  auto rows = select_rows(options_.rows);
  folders_.emplace(options_.keep);
  GauntletResult result{.build = build_, .vary = options_.vary};
  for (softtpu::Row r : rows) {
    if (stop()) break;
    Planting planting = plan_row(r, options_.vary, options_.hbm);
    if (auto it = done_.rows.find(planting.id); it != done_.rows.end()) {
      result.rows.push_back(it->second);
      continue;
    }
    RowResult row = run_row(planting);
    if (stop()) break;  // broken off: it says nothing
    result.rows.push_back(std::move(row));
    state_->add(result.rows.back());
    say_(row_line(result.rows.back()));
  }
  result.clean = done_.clean[""];
  if (result.clean.size() > options_.clean) result.clean.resize(options_.clean);
  while (result.clean.size() < options_.clean && !stop()) {
    auto n = static_cast<unsigned>(result.clean.size());
    CleanRun run = run_clean(n);
    if (stop()) break;
    result.clean.push_back(std::move(run));
    state_->add(result.clean.back());
    const CleanRun& c = result.clean.back();
    say_(fmt::format("clean run {}: {} passed, {} alarms, {:.1f} s", n + 1, c.passed, c.alarms.size(),
                     c.seconds));
  }
  result.ignored.assign(done_.ignored.begin(), done_.ignored.end());
  return result;
}

}  // namespace kz::gauntlet
