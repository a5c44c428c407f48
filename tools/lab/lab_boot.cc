// SPDX-License-Identifier: GPL-2.0-or-later
// One boot of a lab run: what the guest gets, how it is watched, what its end means.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "tools/changes/changes.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/boot_verdicts.h"
#include "tools/lab/boot_watch.h"
#include "tools/lab/lab.h"
#include "tools/report/terminal.h"

namespace kz::lab {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

double limit_of(const std::string& step, const LabOptions& o) {
  if (step == "load" || step == "unload") return 90;
  if (step == "boot" || step == "poweroff") return 60;
  if (step == "selftest") return 600;
  if (step == "leaks") return 900;
  if (step == "traffic") return o.load_s + 120;
  return o.limit_s;
}

constexpr const char* device_bdf = "0000:01:00.0";  // below the root port

// The last line in which the driver speaks for itself, rather than the loader of it.
std::string last_word_of(const std::string& module, const std::string& log) {
  std::istringstream in(log);
  std::string found;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(module) && line.find("taint") == std::string::npos) found = line;
  return printable(found);
}

// Shows the guest's console as it comes.
class Console {
 public:
  explicit Console(const std::string& file, bool on) : in_(file), on_(on) {}
  void show() {
    if (!on_) return;
    in_.clear();
    char chunk[4096];
    while (in_.read(chunk, sizeof chunk), in_.gcount() > 0)
      say(std::string_view(chunk, static_cast<size_t>(in_.gcount())));
  }

 private:
  std::ifstream in_;
  bool on_;
};

// Reports of the kernel that a test of this run brought about on purpose.
std::set<std::string> expected_reports(const std::string& run) {
  std::set<std::string> out;
  if (!fs::exists(run + "/journal.jsonl")) return out;
  for (auto& r : read_journal(run).records)
    if (text_of(r, "type") == "kernel-context" && r.value("expected", false) && r["lines"].is_array())
      for (auto& line : r["lines"])
        if (line.is_string()) out.insert(printable(line.get<std::string>()));
  return out;
}

}  // namespace

std::string Lab::environment_of(const Plan& plan, const BuiltDriver& driver, bool again) const {
  std::string run, name = module_name(driver.module), output = "/host/run";
  if (!tests_.empty() && again) {
    run = "kangzao resume " + output;
  } else if (!tests_.empty()) {
    const Selection& s = options_.run.selection;
    run = fmt::format("kangzao run --device {} --profile {} --seed {} --retries {} --output {} --destructive",
                      shell_word(guest_device()), s.profile, options_.run.seed, options_.run.retries, output);
    for (auto& f : s.filters) run += " --filter " + shell_word(f);
    for (auto& g : s.groups) run += " --group " + shell_word(g);
    for (auto l : s.levels) run += fmt::format(" --level {}", l);
    for (auto& l : s.labels) run += " --label " + shell_word(l);
    for (auto& l : s.without_labels) run += " --no-label " + shell_word(l);
    for (auto& t : s.order) run += " --order " + shell_word(t);
    if (options_.run.stop_on_fail) run += " --stop-on-fail";
    if (!options_.driver.empty()) run += " --module /lab/driver.ko";
    if (!options_.run.load_command.empty()) run += " --load-command " + shell_word(options_.run.load_command);
  }
  auto wanted = steps();
  auto has_step = [&](const std::string& s) {
    return std::ranges::count(wanted, s) > 0 && !is_done(plan.kernel.name + "." + s);
  };
  std::string load =
      options_.load.empty() || !has_step("traffic")
          ? ""
          : fmt::format("kangzao load /lab/load.profile --device {} --time {}s --run-dir /host/load-run",
                        shell_word(guest_device()), options_.load_s);
  return fmt::format("driver={}\nneeds={}\nparameters=\nnode={}\nselftest={}\nrun={}\nload={}\n", name,
                     shell_word(fmt::format("{}", fmt::join(module_depends(driver.module), " "))),
                     options_.driver.empty() ? "/dev/kz0" : "", has_step("selftest") ? "1" : "",
                     shell_word(run), shell_word(load));
}

GuestSpec Lab::spec_of(const Plan& plan, const BuiltDriver& driver, bool again) const {
  GuestSpec spec{.kernel = plan.kernel,
                 .share = folder_of(plan),
                 .directory = fmt::format("{}/boot-{}", folder_of(plan), plan.boots),
                 .modules = module_depends(driver.module),
                 .append = options_.append,
                 .iommu = options_.iommu};
  spec.files.push_back({"lab/run", share_folder() + "/tools/lab/guest-run.sh"});
  spec.files.push_back({"lab/driver.ko", driver.module});
  spec.files.push_back(
      {"lab/env", "", fmt::format("boot=/host/boot-{}\n", plan.boots) + environment_of(plan, driver, again)});
  if (!options_.load.empty()) spec.files.push_back({"lab/load.profile", options_.load});
  if (auto wanted = steps(); std::ranges::count(wanted, std::string("selftest")) > 0)
    spec.files.push_back({"bin/kz-selftest", build_selftest()});
  for (auto& e : fs::directory_iterator(program_directory())) {
    std::string name = e.path().filename();
    if (name == "kangzao" || name.starts_with("kz-test-"))
      spec.files.push_back({.path = "usr/bin/" + name, .source = e.path(), .program = true});
  }
  if (!options_.tpu.empty()) spec.softtpu = parse_uri("softtpu:" + options_.tpu).options;
  for (auto& pair : options_.add) spec.files.push_back(added_file(pair));
  spec.modules.insert(spec.modules.end(), options_.with.begin(), options_.with.end());
  spec.qemu_words = split_words(options_.qemu_words);
  spec.board = !options_.vfio.empty()        ? Board::vfio
               : !options_.vfio_user.empty() ? Board::vfio_user
               : !options_.pci.empty()       ? Board::qemu
                                             : Board::softtpu;
  spec.target = options_.vfio + options_.vfio_user + options_.pci;
  if (plan.kernel.name.ends_with("-debug")) spec.memory_mib = 2048;
  return spec;
}

void Lab::note_first_test(Plan& plan, const Guest& guest, const std::string& step) {
  if (plan.column.first_test_s >= 0 || (step != "selftest" && step != "run" && step != "traffic")) return;
  plan.column.first_test_s = guest.age().count();
  say(fmt::format("lab: {}: first test {:.1f} s after QEMU's start\n", plan.kernel.name,
                  plan.column.first_test_s));
}

BootEnd Lab::follow(Guest& guest, Plan& plan, const std::string& directory) {
  using How = BootEnd::How;
  Console console(directory + "/serial.log", options_.debug);
  std::vector<std::string> expected{"boot"};
  for (auto& s : steps())
    if (s != "build" && s != "boot" && s != "kernel_log") expected.push_back(s);
  BootWatch watch([this](auto& step) { return limit_of(step, options_); }, expected, Clock::now());
  for (;;) {
    auto state = guest.watch(100ms);
    console.show();
    auto reached = read_steps(directory);
    if (!reached.empty()) note_first_test(plan, guest, reached.back().name);
    if (told_to_stop()) return {How::interrupted};
    if (state == Guest::State::powered_off) return {How::off};
    if (state == Guest::State::ended) return {How::qemu_gone, "QEMU ended: " + guest.how_ended()};
    if (state == Guest::State::reset) {
      std::string why = panic_line(directory);
      return {How::died,
              why.empty() ? "the guest restarted itself without a word" : "the guest died: " + why};
    }
    if (std::string what = watch.late(reached, content_of(directory + "/alive"), Clock::now()); !what.empty())
      return {How::late, what};
  }
}

bool Lab::boot(Plan& plan, const BuiltDriver& driver) {
  ++plan.boots;
  std::string directory = fmt::format("{}/boot-{}", folder_of(plan), plan.boots);
  BootEnd end;
  try {
    end = run_guest(plan, driver, directory);
  } catch (const Error& e) {
    if (!told_to_stop()) cannot_boot(plan, e.what());
    return false;
  }
  if (end.how == BootEnd::How::interrupted) {
    mark_interrupted(folder_of(plan) + "/run");
    return false;
  }
  take_boot(plan, directory, end);
  if (end.how == BootEnd::How::qemu_gone) return true;  // that says nothing of this kernel
  auto reached = read_steps(directory);
  bool loaded = std::ranges::any_of(reached, [](auto& s) { return s.name == "load" && s.status == 0; });
  return end.broken() && loaded && reached.back().name != "unload" && reached.back().name != "poweroff";
}

BootEnd Lab::run_guest(Plan& plan, const BuiltDriver& driver, const std::string& directory) {
  bool again = take_up_run(folder_of(plan), fs::path(directory).filename());
  fs::create_directories(directory);
  Guest guest(spec_of(plan, driver, again), qemu_, accelerator_);
  BootEnd end = follow(guest, plan, directory);
  if (end.broken()) keep_evidence(guest, plan, directory, end);
  return end;
}

// The host failed, or QEMU refused; the next kernel may fare better.
void Lab::cannot_boot(Plan& plan, const std::string& why) {
  plan.no_guest = fmt::format("boot {} could not be started: {}", plan.boots, why);
  say(fmt::format("lab: {}: {}\n", plan.kernel.name, plan.no_guest));
  std::string id = plan.kernel.name + ".boot";
  if (!is_done(id)) verdict(id, level_of_step("boot"), Verdict::blocked, why, 0, {{"ran", false}});
}

void Lab::keep_evidence(Guest& guest, const Plan& plan, const std::string& directory, const BootEnd& end) {
  auto kept = guest.take_evidence();
  std::string text = fmt::format("{} boot {}: {}; kept in {}: serial.log{}{}", plan.kernel.name, plan.boots,
                                 end.text, directory, kept.empty() ? "" : ", ", fmt::join(kept, ", "));
  journal_->write({{"type", "note"}, {"text", text}}, true);
  say("lab: " + text + "\n");
}

std::string Lab::explain_load_failure(const Plan& plan, const std::string& id, const std::string& directory,
                                      const std::string& said) {
  std::string reason, log = log_since(directory, "load"), own = last_word_of(plan.module, log);
  for (auto& f : changes::explain_load(log + said, plan.kernel.release)) {
    auto holds = [&](const std::string& word) { return f.evidence.find(word) != std::string::npos; };
    bool others = f.name == "probe_failed" && !holds(plan.module) && !holds(device_bdf);
    if (others) continue;
    evidence(id, "kernel.change", changes::to_json(f));
    if (reason.empty() && !f.harmless) reason = fmt::format("{} {} {}", f.what, f.cause, f.cure);
  }
  if (reason.empty()) reason = last_line(said);
  return own.empty() ? reason : fmt::format("{} (the driver: {})", reason, own);
}

void Lab::take_boot(const Plan& plan, const std::string& directory, const BootEnd& end) {
  GuestRun run = read_guest_run(folder_of(plan) + "/run");
  if (std::string test = broken_test(read_steps(directory), end, run); !test.empty())
    broken_[test] = end.text;
  auto wanted = steps();
  for (auto& s : judge_steps(directory, end, run)) {
    std::string id = plan.kernel.name + "." + s.step;
    if (std::ranges::count(wanted, s.step) == 0) continue;
    if (s.verdict == Verdict::pass) {
      if (!is_done(id)) verdict(id, level_of_step(s.step), s.verdict, "", s.seconds);
      continue;
    }
    std::string text = content_of(directory + "/" + s.step + ".log");
    if (s.step == "leaks" && s.verdict == Verdict::fail)
      evidence(id, "kernel.log", {{"line", "kmemleak: " + text.substr(0, 200)}});
    if (s.step == "unload" && s.verdict == Verdict::fail)
      evidence(id, "driver", {{"what", "never_unloads"}, {"text", last_line(text)}});
    if (s.step == "load" && s.verdict == Verdict::fail)
      s.reason = explain_load_failure(plan, id, directory, text);
    verdict(id, level_of_step(s.step), s.verdict, s.reason, s.seconds,
            {{"rerun", rerun_line(plan, "")},
             {"output", text.substr(text.size() > 8192 ? text.size() - 8192 : 0)}});
  }
}

// Did a boot end in its run? Tests that no other boot came to are not reached then, rather than blocked.
bool Lab::broke(const Plan& plan) const {
  auto run = done_.find(plan.kernel.name + ".run");
  return run != done_.end() && (run->second == Verdict::crash || run->second == Verdict::timeout);
}

void Lab::take_verdicts(const Plan& plan) {
  Journal journal;
  std::string run = folder_of(plan) + "/run", why = "the guest has no journal of it";
  try {
    journal = read_journal(run);
  } catch (const std::exception&) {
    for (int n = plan.boots; n > 0; --n)
      if (std::string said = last_line(content_of(fmt::format("{}/boot-{}/run.log", folder_of(plan), n)));
          !said.empty()) {
        why = said;
        break;
      }
  }
  std::map<std::string, int> levels;
  for (auto& t : tests_)
    if (!is_done(plan.kernel.name + "." + t.id)) levels[t.id] = t.level;
  for (json r : journal.records) {
    std::string type = text_of(r, "type"), id = text_of(r, "id");
    if (type == "device-lost")
      journal_->write({{"type", "device-lost"}, {"text", plan.kernel.name + ": " + text_of(r, "text")}},
                      true);
    if (!levels.contains(id) ||
        (type != "verdict" && type != "evidence" && type != "metric" && type != "retries"))
      continue;
    for (auto key : {"v", "boot", "mono", "wall", "seq"}) r.erase(key);
    r["id"] = plan.kernel.name + "." + id;
    if (type == "verdict") {
      if (r.contains("rerun")) r["rerun"] = rerun_line(plan, id);
      if (text_of(r, "verdict") == "crash" && broken_.contains(id))
        r["reason"] = broken_[id] + "; " + text_of(r, "reason");
      if (auto v = parse_verdict(text_of(r, "verdict"))) done_[text_of(r, "id")] = *v;
    }
    journal_->write(std::move(r), type == "verdict");
  }
  for (auto& [id, level] : levels)
    if (std::string full = plan.kernel.name + "." + id; !is_done(full) && broken_.contains(id))
      verdict(full, level, Verdict::crash, broken_[id], 0, {{"rerun", rerun_line(plan, id)}});
    else if (!is_done(full) && journal.records.empty() && !broke(plan) && plan.no_guest.empty())
      verdict(full, level, Verdict::blocked, why, 0, {{"ran", false}});
  judge_kernel_log(plan);
}

void Lab::judge_kernel_log(const Plan& plan) {
  json failures = json::array();
  std::string first, gap;
  bool spoke = false;
  const std::set<std::string> expected = expected_reports(folder_of(plan) + "/run");
  for (int n = 1; n <= plan.boots; ++n) {
    std::string directory = fmt::format("{}/boot-{}", folder_of(plan), n);
    spoke |= !content_of(directory + "/serial.log").empty();
    for (auto& r : kernel_reports(directory, expected)) {
      if (first.empty()) first = r;
      failures.push_back({{"file", "kernel.log"}, {"line", 0}, {"text", r}});
      evidence(plan.kernel.name + ".kernel_log", "kernel.log", {{"line", r}});
    }
    if (std::string why = log_gap(directory); gap.empty() && !why.empty())
      gap = fmt::format("boot {}: {}", n, why);
  }
  if (!spoke) return;
  std::string reason =
      first.empty() ? gap : fmt::format("{} reports of the kernel, first: {}", failures.size(), first);
  verdict(plan.kernel.name + ".kernel_log", 3,
          !first.empty() ? Verdict::fail
          : !gap.empty() ? Verdict::blocked
                         : Verdict::pass,
          reason, 0, {{"failures", failures}});
}

}  // namespace kz::lab
