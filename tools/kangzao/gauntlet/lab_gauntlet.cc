// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/lab_gauntlet.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "shim/base/error.h"
#include "shim/base/hash.h"
#include "shim/base/units.h"
#include "tools/kangzao/gauntlet/gauntlet.h"
#include "tools/kangzao/gauntlet/order.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/lab.h"

namespace kz::gauntlet {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr double boot_limit_s = 1200;  // a debug kernel under TCG
constexpr const char* driver_group = "kmod";

// The tests of the driver first: what they say of it is nearer to the cause than what commands suffer from
// it.
std::vector<std::string> choose_tests(const LabGauntletOptions& o) {
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

std::string state_key(const LabGauntletOptions& o, const std::string& build,
                      const std::vector<std::string>& tests) {
  json j = {{"build", build},       {"full", o.full}, {"profile", o.profile},
            {"kernels", o.kernels}, {"seed", o.seed}, {"tests", tests}};
  for (auto& role : o.kernels)
    j["releases"].push_back(
        lab::run_script("roots.sh", {"has", role}, 10s) == "yes" ? lab::find_kernel(role).hash : 0);
  if (o.vary) j["vary"] = *o.vary;
  Hash hash;
  hash.add(j.dump());
  return fmt::format("{:016x}", hash.value());
}

bool is_ours(const Alarm& a) { return a.detector.starts_with("our check"); }

}  // namespace

LabGauntlet::LabGauntlet(LabGauntletOptions options, std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)), tests_(choose_tests(options_)) {
  const std::string sources = lab::share_folder() + "/shim/kmod";
  bugs_ = select_driver_bugs(parse_driver_bugs(lab::content_of(sources + "/bugs.txt")), options_.rows);
  if (options_.kernels.empty())
    throw Error({Errc::usage, "read --kernels", "''", "no kernel is named", "", 0});
  lab::check_options({.kernels = options_.kernels});
  build_ = fmt::format("{}-{:016x}", build_fingerprint(program_directory()), lab::driver_hash(sources));
  state_.emplace(options_.state, state_key(options_, build_, tests_), build_);
  if (options_.resume) load_state();
}

LabGauntlet::~LabGauntlet() {
  std::error_code ec;
  if (options_.keep.empty() && !base_.empty()) fs::remove_all(base_, ec);
}

void LabGauntlet::make_base() {
  base_ = options_.keep;
  if (!base_.empty()) {
    fs::create_directories(base_);
    return;
  }
  base_ = (fs::temp_directory_path() / "kz-gauntlet-XXXXXX").string();
  if (::mkdtemp(base_.data()) == nullptr) throw_errno("create folder", base_);
}

void LabGauntlet::load_state() {
  for (const json& j : state_->read()) {
    try {
      if (j.contains("row")) done_rows_[j["row"].at("id")] = row_from_json(j["row"]);
      if (j.contains("clean")) clean_[j.at("kernel")].push_back(clean_from_json(j["clean"]));
      if (j.contains("ignored")) ignored_.insert(j["ignored"].get<std::string>());
    } catch (const json::exception&) {
      continue;  // a line that another version wrote
    }
  }
}

LabGauntlet::GuestRun LabGauntlet::run_guest(const std::string& kernel, const std::vector<std::string>& make,
                                             uint64_t seed, const std::string& name, bool stop_on_fail) {
  lab::LabOptions o;
  o.kernels = {kernel};
  o.run.selection.profile = options_.profile;
  o.run.selection.filters = tests_;
  o.run.selection.order = tests_;
  o.run.seed = seed;
  o.run.retries = 0;
  o.run.destructive = true;
  o.run.stop_on_fail = stop_on_fail;
  o.limit_s = boot_limit_s;
  o.make = make;
  std::string directory = fmt::format("{}/{:03}-{}", base_, ++runs_, name);
  auto start = Clock::now();
  lab::Lab lab(o, directory);
  lab.go();
  Journal journal = read_journal(directory);
  GuestRun out{.said = judge(journal, ignored_)};
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (auto& r : journal.records)
    if (text_of(r, "type") == "verdict" && text_of(r, "id") == kernel + ".build" &&
        text_of(r, "verdict") != "pass")
      out.unbuilt = text_of(r, "reason");
  std::error_code ec;
  if (options_.keep.empty()) fs::remove_all(directory, ec);
  return out;
}

RowResult LabGauntlet::run_row(const DriverBug& bug, uint64_t argument) {
  RowResult row{.id = bug.id,
                .fault = {{"row", bug.id}, {"params", {{"bug_arg", argument}}}, {"title", bug.title}},
                .expected = bug.cls};
  for (auto& kernel : options_.kernels) {
    GuestRun run = run_guest(kernel, make_words(bug, argument), options_.seed, bug.id, !options_.full);
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
  GuestRun run = run_guest(kernel, {}, options_.seed + n, "clean", false);
  if (stop_()) return;
  CleanRun clean{.seconds = run.seconds, .passed = run.said.passed, .alarms = {}};
  if (!run.unbuilt.empty()) clean.alarms.push_back("the driver did not build: " + run.unbuilt);
  for (const Alarm& a : run.said.alarms) {
    clean.alarms.push_back(fmt::format("{}: {}: {}", a.test, to_string(a.verdict), a.reason));
    if (ignored_.insert(a.test).second) state_->add({{"ignored", a.test}});
  }
  for (const auto& b : run.said.blocked) clean.alarms.push_back("blocked: " + b);
  say_(fmt::format("clean run {} on {}: {} passed, {} alarms, {:.1f} s", n + 1, kernel, clean.passed,
                   clean.alarms.size(), clean.seconds));
  state_->add({{"clean", to_json(clean)}, {"kernel", kernel}});
  clean_[kernel].push_back(std::move(clean));
}

std::vector<std::pair<DriverBug, uint64_t>> LabGauntlet::plan() const {
  std::vector<std::pair<DriverBug, uint64_t>> out;
  for (auto& bug : bugs_) out.emplace_back(bug, bug_argument(bug, options_.vary));
  return out;
}

GauntletResult LabGauntlet::run(const std::function<bool()>& stop) {
  stop_ = stop;
  make_base();
  for (auto& kernel : options_.kernels)
    while (!stop() && clean_[kernel].size() < options_.clean) {
      auto before = clean_[kernel].size();
      run_clean(kernel, static_cast<unsigned>(before));
      if (clean_[kernel].size() == before) break;
    }
  GauntletResult result{.build = build_, .vary = options_.vary};
  for (auto& [bug, argument] : plan()) {
    if (stop()) break;
    if (auto it = done_rows_.find(bug.id); it != done_rows_.end()) {
      result.rows.push_back(it->second);
      continue;
    }
    RowResult row = run_row(bug, argument);
    if (stop()) break;  // broken off: it says nothing
    state_->add({{"row", to_json(row)}});
    say_(row_line(row));
    result.rows.push_back(std::move(row));
  }
  for (auto& kernel : options_.kernels)
    for (size_t i = 0; i < std::min<size_t>(clean_[kernel].size(), options_.clean); ++i)
      result.clean.push_back(clean_[kernel][i]);
  result.ignored.assign(ignored_.begin(), ignored_.end());
  return result;
}

}  // namespace kz::gauntlet
