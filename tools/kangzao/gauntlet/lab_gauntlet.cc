// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/lab_gauntlet.h"

#include <fmt/format.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/base/hash.h"
#include "shim/base/units.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/lab.h"

namespace kz::gauntlet {
using nlohmann::json;
namespace {

// All tests on a debug kernel under TCG. A guest that hangs is ended long before.
constexpr double boot_limit_s = 3600;
constexpr const char* driver_group = "kmod";

// The tests of the driver first: what they say of it is nearer to the cause than what commands suffer from
// it.
std::vector<std::string> choose_tests(const GauntletOptions& o) {
  auto all = load_catalog(program_directory(), o.profile);
  Selection selection;
  selection.profile = o.profile;
  std::vector<std::string> ids;
  if (!o.tests.empty()) {
    selection.filters = o.tests;
    for (auto& t : select_tests(all, selection)) ids.push_back(t.id);
    return ids;
  }
  Selection driver = selection;
  driver.groups = {driver_group};
  for (auto& t : select_tests(all, driver)) ids.push_back(t.id);
  for (auto& t : ordered_tests(select_tests(all, selection))) ids.push_back(t.id);
  return ids;
}

std::string driver_sources() { return lab::share_folder() + "/shim/kmod"; }

std::string state_key(const GauntletOptions& o, const std::vector<std::string>& kernels,
                      const std::string& build, const std::vector<std::string>& tests) {
  json j = {{"build", build}, {"full", o.full}, {"profile", o.profile}, {"hbm", o.hbm},
            {"seed", o.seed}, {"tests", tests}, {"kernels", kernels}};
  for (auto& role : kernels) j["builds"].push_back(lab::find_kernel(role).hash);
  if (o.vary) j["vary"] = *o.vary;
  Hash hash;
  hash.add(j.dump());
  return fmt::format("{:016x}", hash.value());
}

bool is_ours(const Alarm& a) { return a.detector.starts_with("our check"); }

}  // namespace

LabGauntlet::LabGauntlet(GauntletOptions options, std::vector<std::string> kernels,
                         std::function<void(const std::string&)> say)
    : options_(std::move(options)),
      kernels_(std::move(kernels)),
      say_(std::move(say)),
      tests_(choose_tests(options_)) {
  bugs_ =
      select_driver_bugs(parse_driver_bugs(lab::content_of(driver_sources() + "/bugs.txt")), options_.rows);
  lab::check_options({.kernels = kernels_});
}

LabGauntlet::GuestRun LabGauntlet::run_guest(const std::string& kernel, const std::vector<std::string>& make,
                                             uint64_t seed, const std::string& name, bool stop_on_fail,
                                             const std::set<std::string>& ignored) {
  lab::LabOptions o;
  o.kernels = {kernel};
  o.run.selection.profile = options_.profile;
  // A test that alarms on a sound device says nothing of a bug, and would end the run before the others.
  std::vector<std::string> tests = tests_;
  if (stop_on_fail) std::erase_if(tests, [&](const std::string& id) { return done_.ignored.contains(id); });
  o.run.selection.filters = tests;
  o.run.selection.order = tests;
  o.run.seed = seed;
  o.run.retries = 0;
  o.run.destructive = true;
  o.run.stop_on_fail = stop_on_fail;
  o.limit_s = boot_limit_s;
  o.make = make;
  o.tpu = "hbm=" + options_.hbm;
  o.with = {"aer_inject"};  // where the kernel has it
  std::string directory = folders_->fresh();
  auto start = Clock::now();
  lab::Lab lab(o, directory);
  lab.go();
  Journal journal = read_journal(directory);
  GuestRun out{.said = judge(journal, ignored), .exit_status = exit_code(lab.summary())};
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (auto& r : journal.records)
    if (text_of(r, "type") == "verdict" && text_of(r, "id") == kernel + ".build" &&
        text_of(r, "verdict") != "pass")
      out.unbuilt = text_of(r, "reason");
  folders_->done(directory, name);
  return out;
}

RowResult LabGauntlet::run_row(const DriverBug& bug, uint64_t argument) {
  RowResult row{.id = bug.id,
                .fault = {{"row", bug.id}, {"params", {{"bug_arg", argument}}}, {"title", bug.title}},
                .expected = bug.cls};
  for (auto& kernel : kernels_) {
    GuestRun run =
        run_guest(kernel, make_words(bug, argument), options_.seed, bug.id, !options_.full, done_.ignored);
    if (stop_()) return row;
    row.seconds += run.seconds;
    row.kernel = kernel;
    if (!run.unbuilt.empty()) {
      row.unplantable = run.unbuilt;
      return row;
    }
    auto& alarms = run.said.alarms;
    row.caught = !alarms.empty();
    row.cls = triage::to_string(run.said.diagnosis.cls);
    row.confidence = triage::to_string(run.said.diagnosis.confidence);
    row.reason = run.said.diagnosis.reason;
    if (!row.caught) {
      if (!run.said.blocked.empty()) row.reason = "blocked: " + run.said.blocked.front();
      continue;
    }
    // What a test says stands before what the lab's own steps see afterwards, and our check before the
    // kernel's.
    auto rank = [&](const Alarm& a) {
      bool step = std::ranges::count(a.test, '.') == 1;
      return (is_ours(a) ? 0 : 2) + (step ? 1 : 0);
    };
    std::ranges::stable_sort(alarms, {}, rank);
    row.detector = alarms.front().detector;
    for (auto& a : alarms) row.by.push_back(a.test);
    break;
  }
  return row;
}

void LabGauntlet::run_clean(const std::string& kernel, unsigned n) {
  GuestRun run =
      run_guest(kernel, {}, options_.seed + n, "clean", false, {});  // every alarm counts, each time
  if (stop_()) return;
  std::string unbuilt = run.unbuilt.empty() ? "" : "the driver did not build: " + run.unbuilt;
  CleanRun clean = clean_run(run.said, run.seconds, run.exit_status, unbuilt);
  for (const Alarm& a : run.said.alarms)
    if (done_.ignored.insert(a.test).second) state_->add_ignored(a.test);
  say_(fmt::format("clean run {} on {}: {} passed, {} alarms, {:.1f} s", n + 1, kernel, clean.passed,
                   clean.alarms.size(), clean.seconds));
  clean.kernel = kernel;
  state_->add(clean);
  done_.clean[kernel].push_back(std::move(clean));
}

std::vector<std::pair<DriverBug, uint64_t>> LabGauntlet::plan() const {
  std::vector<std::pair<DriverBug, uint64_t>> out;
  for (auto& bug : bugs_) out.emplace_back(bug, bug_argument(bug, options_.vary));
  return out;
}

GauntletResult LabGauntlet::run(const std::function<bool()>& stop) {
  stop_ = stop;
  lab::fetch_missing(kernels_, true);
  build_ =
      fmt::format("{}-{:016x}", build_fingerprint(program_directory()), lab::driver_hash(driver_sources()));
  state_.emplace(options_.state, state_key(options_, kernels_, build_, tests_), build_);
  if (options_.resume) done_ = state_->read();
  folders_.emplace(options_.keep);
  for (auto& kernel : kernels_)
    while (!stop() && done_.clean[kernel].size() < options_.clean)
      run_clean(kernel, static_cast<unsigned>(done_.clean[kernel].size()));
  GauntletResult result{.build = build_, .vary = options_.vary};
  for (auto& [bug, argument] : plan()) {
    if (stop()) break;
    if (auto it = done_.rows.find(bug.id); it != done_.rows.end()) {
      result.rows.push_back(it->second);
      continue;
    }
    RowResult row = run_row(bug, argument);
    if (stop()) break;  // broken off: it says nothing
    state_->add(row);
    say_(row_line(row));
    result.rows.push_back(std::move(row));
  }
  for (auto& kernel : kernels_) {
    auto& runs = done_.clean[kernel];
    result.clean.insert(result.clean.end(), runs.begin(),
                        runs.begin() + static_cast<long>(std::min<size_t>(runs.size(), options_.clean)));
  }
  result.ignored.assign(done_.ignored.begin(), done_.ignored.end());
  return result;
}

}  // namespace kz::gauntlet
