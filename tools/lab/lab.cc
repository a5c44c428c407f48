// SPDX-License-Identifier: GPL-2.0-or-later
// The order of a lab run. One boot is in lab_boot.cc.
#include "tools/lab/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "tools/changes/changes.h"
#include "tools/kangzao/runner/environment.h"
#include "tools/kangzao/runner/process.h"
#include "tools/report/formats.h"

namespace kz::lab {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr int most_boots = 4;  // of one kernel: after a panic the next test goes on in a new boot

const json* start_record(const Journal& journal) {
  for (auto& r : journal.records)
    if (text_of(r, "type") == "run-start" && r.contains("options") && r["options"].is_object() &&
        r["options"].contains("lab"))
      return &r;
  return nullptr;
}

}  // namespace

std::string other_parts(const json& before, const json& now) {
  auto differs = [](const json& a, const json& b, const char* key) {
    return a.contains(key) && b.contains(key) && a[key] != b[key];
  };
  for (auto& old : before.value("kernels", json::array()))
    for (auto& k : now.value("kernels", json::array()))
      if (text_of(old, "name") == text_of(k, "name") &&
          (differs(old, k, "release") || differs(old, k, "image") || differs(old, k, "hash")))
        return fmt::format("kernel {} was {}, and is {} of another build", text_of(k, "name"),
                           text_of(old, "release"), text_of(k, "release"));
  return differs(before, now, "driver") || differs(before, now, "make") ? "the driver is another one" : "";
}

int level_of_step(const std::string& step) {
  if (step == "selftest") return 2;
  return step == "kernel_log" || step == "leaks" || step == "traffic" ? 3 : 1;
}

Lab::Lab(LabOptions options, std::string directory, bool resumed)
    : options_(std::move(options)), directory_(fs::absolute(directory)), resumed_(resumed) {}

Lab::Lab(LabOptions options, const std::string& directory) : Lab(std::move(options), directory, false) {
  check_options(options_);
  need_root();
  bool tests = options_.run.selection.profile != "none";
  if (tests)
    tests_ = select_tests(load_catalog(program_directory(), options_.run.selection.profile),
                          options_.run.selection);
  prepare();
  create_run_directory(directory_);
  journal_ = std::make_unique<JournalWriter>(directory_, JournalWriter::Mode::create);
  write_start();
}

std::unique_ptr<Lab> Lab::resume(const std::string& directory) {
  auto writer = std::make_unique<JournalWriter>(fs::absolute(directory), JournalWriter::Mode::append);
  Journal journal = read_journal(directory);
  const json* start = start_record(journal);
  if (start == nullptr) throw JournalError("the journal in " + directory + " is of no lab run");
  std::unique_ptr<Lab> lab;
  try {
    lab.reset(new Lab(LabOptions::from_json((*start)["options"]), directory, true));
  } catch (const json::exception& e) {
    throw JournalError(fmt::format("the start record in {} cannot be used ({}); run again from the beginning",
                                   directory, e.what()));
  }
  Lab& l = *lab;
  need_root();
  if (l.options_.run.selection.profile != "none")
    l.tests_ = select_tests(load_catalog(program_directory(), l.options_.run.selection.profile),
                            l.options_.run.selection);
  l.journal_ = std::move(writer);
  for (auto& r : journal.records)
    if (text_of(r, "type") == "verdict")
      if (auto v = parse_verdict(text_of(r, "verdict")); v && r.value("ran", json(true)) != false)
        l.done_[text_of(r, "id")] = *v;
  check_options(l.options_);
  l.prepare();
  if (std::string other =
          other_parts((*start).value("environment", json::object()).value("lab", json::object()), l.parts());
      !other.empty())
    throw JournalError(fmt::format("{} cannot go on: {}; run again from the beginning", directory, other));
  l.journal_->write({{"type", "resume"}, {"after", ""}}, true);
  return lab;
}

bool Lab::is_lab_run(const std::string& directory) {
  try {
    return start_record(read_journal(directory)) != nullptr;
  } catch (const std::exception&) {
    return false;  // whoever reads it next says why
  }
}

void Lab::prepare() {
  auto roles = options_.kernel.empty() ? options_.kernels : std::vector<std::string>{};
  if (!options_.qemu.empty()) find_qemu(options_.qemu);
  fetch_missing(roles, options_.qemu.empty());
  qemu_ = find_qemu(options_.qemu);
  for (auto& role : roles) plans_.push_back({.kernel = find_kernel(role)});
  if (!options_.kernel.empty()) plans_.push_back({.kernel = given_kernel(options_.kernel, options_.modules)});
  for (auto& p : plans_) p.column = {p.kernel.name, p.kernel.release, -1};
  accelerator_ = pick_accelerator(qemu_, plans_.front().kernel);
  say(fmt::format("lab: QEMU {}, {}\n", qemu_.version,
                  accelerator_ == "kvm" ? "KVM" : "TCG (no KVM that works here)"));
}

std::vector<std::string> Lab::steps() const {
  std::vector<std::string> out{"build", "boot", "load"};
  if (options_.driver.empty() && options_.run.selection.filters.empty()) out.emplace_back("selftest");
  if (!tests_.empty()) out.emplace_back("run");
  if (!options_.load.empty()) out.emplace_back("traffic");
  out.insert(out.end(), {"kernel_log", "leaks", "unload", "poweroff"});
  return out;
}

std::string Lab::driver_sources() const {
  return options_.driver.empty() ? share_folder() + "/shim/kmod" : options_.driver;
}

// What the run is made of.
json Lab::parts() const {
  json kernels = json::array();
  for (auto& p : plans_)
    kernels.push_back({{"name", p.kernel.name},
                       {"release", p.kernel.release},
                       {"image", p.kernel.image},
                       {"hash", fmt::format("{:016x}", p.kernel.hash)}});
  return {{"qemu", qemu_.version},
          {"accelerator", accelerator_},
          {"kernels", kernels},
          {"driver", fmt::format("{:016x}", driver_hash(driver_sources()))},
          {"make", options_.make}};
}

void Lab::write_start() {
  json tests = json::array();
  std::vector<int> all_levels;
  for (auto& p : plans_) {
    for (auto& s : steps())
      if (s != "leaks" || p.kernel.name.ends_with("-debug")) {
        tests.push_back({{"id", p.kernel.name + "." + s}, {"level", level_of_step(s)}});
        all_levels.push_back(level_of_step(s));
      }
    for (auto& t : tests_) {
      tests.push_back({{"id", p.kernel.name + "." + t.id}, {"level", t.level}});
      all_levels.push_back(t.level);
    }
  }
  std::ranges::sort(all_levels);
  all_levels.erase(std::unique(all_levels.begin(), all_levels.end()), all_levels.end());
  const Selection& s = options_.run.selection;
  if (!tests_.empty() && s.filters.empty() && s.groups.empty() && s.levels.empty() && s.labels.empty())
    all_levels = {1, 2, 3, 4};
  json environment = host_environment();
  environment["lab"] = parts();
  journal_->write({{"type", "run-start"},
                   {"device", "lab:" + guest_device()},
                   {"profile", s.profile},
                   {"seed", std::to_string(options_.run.seed)},
                   {"repeat", 1},
                   {"levels", all_levels},
                   {"options", options_.to_json()},
                   {"environment", environment},
                   {"tests", tests}},
                  true);
}

std::string Lab::guest_device() const {
  if (!options_.device.empty()) return options_.device;
  return options_.driver.empty() ? "dev:/dev/kz0" : "pci:0000:01:00.0";
}

std::string Lab::folder_of(const Plan& plan) const { return directory_ + "/" + plan.kernel.name; }

bool Lab::is_done(const std::string& id) const { return done_.contains(id); }

std::string Lab::rerun_line(const Plan& plan, const std::string& test) const {
  return lab::rerun_line(options_, plan.kernel, test);
}

void Lab::verdict(const std::string& id, int level, Verdict v, const std::string& reason, double seconds,
                  json more) {
  json record = std::move(more);
  record.update({{"type", "verdict"},
                 {"id", id},
                 {"level", level},
                 {"verdict", to_string(v)},
                 {"reason", reason},
                 {"seconds", seconds}});
  journal_->write(std::move(record), true);
  done_[id] = v;
}

void Lab::evidence(const std::string& id, const char* kind, const json& detail) {
  journal_->write({{"type", "evidence"}, {"id", id}, {"kind", kind}, {"detail", detail}});
}

void Lab::rest_not_run(const Plan& plan, const std::string& reason) {
  json stands_in{{"ran", false}};
  for (auto& s : steps()) {
    std::string id = plan.kernel.name + "." + s;
    if (!is_done(id) && (s != "leaks" || plan.kernel.name.ends_with("-debug")))
      verdict(id, level_of_step(s), Verdict::not_run, reason, 0, stands_in);
  }
  for (auto& t : tests_)
    if (std::string id = plan.kernel.name + "." + t.id; !is_done(id))
      verdict(id, t.level, Verdict::not_run, reason, 0, stands_in);
}

bool Lab::build(Plan& plan, BuiltDriver& driver) {
  std::string id = plan.kernel.name + ".build";
  try {
    driver = build_driver(plan.kernel, driver_sources(), options_.make);
  } catch (const Error& e) {
    if (e.code() == Errc::usage) throw;
    if (!told_to_stop()) verdict(id, 1, Verdict::blocked, e.what(), 0, {{"ran", false}});
    return false;
  }
  plan.module = module_name(driver.module);
  if (driver.module.empty() && told_to_stop()) return false;  // we ended it; the next run builds it
  if (!driver.module.empty()) {
    if (!is_done(id)) verdict(id, 1, Verdict::pass, driver.cached ? "from the cache" : "", driver.seconds);
    return true;
  }
  std::string file = folder_of(plan) + "/build.log";
  std::ofstream(file) << driver.log;
  std::string first;
  for (auto& f :
       changes::explain_build(driver.log + "\n" + extra_flags(driver_sources()), plan.kernel.release)) {
    evidence(id, "kernel.change", changes::to_json(f));
    if (first.empty() && !f.harmless) first = fmt::format("{} {} {}", f.what, f.cause, f.cure);
  }
  for (size_t at = 0, end; first.empty() && at < driver.log.size(); at = end + 1) {
    end = std::min(driver.log.find('\n', at), driver.log.size());
    std::string line = driver.log.substr(at, end - at);
    if (line.find("error:") != std::string::npos || line.find("ERROR:") != std::string::npos ||
        line.find("Error ") != std::string::npos)
      first = line;
  }
  verdict(id, 1, Verdict::fail, first.empty() ? "no module came out" : first, driver.seconds,
          {{"rerun", rerun_line(plan, "")},
           {"output", driver.log.substr(driver.log.size() > 8192 ? driver.log.size() - 8192 : 0)}});
  return false;
}

void Lab::run_kernel(Plan& plan) {
  fs::create_directories(folder_of(plan));
  say(fmt::format("lab: {} {}\n", plan.kernel.name, plan.kernel.release));
  BuiltDriver driver;
  if (!build(plan, driver)) {
    if (told_to_stop()) return;
    say(fmt::format("lab: {}: the driver was not built\n", plan.kernel.name));
    rest_not_run(plan, "the driver did not build");
    return;
  }
  while (fs::exists(fmt::format("{}/boot-{}", folder_of(plan), plan.boots + 1)))
    ++plan.boots;  // of a run that ended early
  bool again = true;
  for (int n = 0; again && n < most_boots && !told_to_stop(); ++n) again = boot(plan, driver);
  if (told_to_stop()) return;
  take_verdicts(plan);
  rest_not_run(plan, plan.no_guest.empty() ? "the guest did not get that far" : plan.no_guest);
}

void Lab::go() {
  auto is_left = [&](const Plan& p) {
    auto undone = [&](const std::string& id) { return !is_done(p.kernel.name + "." + id); };
    return undone("build") || undone("kernel_log") ||
           std::ranges::any_of(tests_, [&](auto& t) { return undone(t.id); });
  };
  for (auto& p : plans_) {
    if (told_to_stop()) break;
    if (is_left(p)) run_kernel(p);
  }
  finish();
}

void Lab::finish() { write_run_end(*journal_, directory_, told_to_stop() ? "interrupted" : "complete"); }

RunSummary Lab::summary() const { return summarize(read_journal(directory_)); }

std::string Lab::matrix_text() const {
  std::vector<KernelColumn> columns;
  for (auto& p : plans_) columns.push_back(p.column);
  return matrix(summary(), columns, steps());
}

json Lab::to_json() const {
  std::vector<KernelColumn> columns;
  for (auto& p : plans_) columns.push_back(p.column);
  RunSummary run = summary();
  json out = kz::to_json(run);
  out["kernels"] = matrix_json(run, columns);
  out["accelerator"] = accelerator_;
  out["exit"] = exit_code(run);
  return out;
}

}  // namespace kz::lab
