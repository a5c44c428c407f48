// SPDX-License-Identifier: GPL-2.0-or-later
// The device around the tests of a run: starting it, its health, bringing it back.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "shim/base/error.h"
#include "tools/journal/evidence.h"
#include "tools/kangzao/runner/probe.h"
#include "tools/kangzao/runner/run.h"
#include "tools/kangzao/runner/safety.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

// sun_path holds 107 bytes; a run's folder may be deeper than that.
constexpr size_t longest_socket_folder = 85;

bool needs_health_check(const TestDeclaration& t, const TestOutcome& out) {
  return t.has_label("destructive") || (out.verdict != Verdict::pass && out.verdict != Verdict::skip &&
                                        out.verdict != Verdict::warn && out.verdict != Verdict::blocked);
}

}  // namespace

void Runner::start_softtpu() {
  SoftTpuSpec spec{.options = uri_.options,
                   .directory = directory_.size() <= longest_socket_folder ? directory_ : "",
                   .extra = {},
                   .stop = told_to_stop};
  if (!spec.options.contains("log")) spec.options["log"] = directory_ + "/softtpu.log";
  softtpu_ = std::make_unique<SoftTpuProcess>(spec);
  test_uri_ = "vfio-user:" + softtpu_->socket();
}

CaptureRules Runner::rules() const { return {.may_kill = may_kill(), .stop = told_to_stop}; }

// Everything before the first test.
void Runner::prepare() {
  test_uri_ = options_.device;
  if (is_softtpu()) start_softtpu();
  ProbeResult probe = probe_device(test_uri_, rules());
  const bool died_early = !probe.ok && !told_to_stop() && device_died();
  if (died_early) {
    start_softtpu();
    probe = probe_device(test_uri_, rules());
  }
  if (probe.code == "usage") throw Error({Errc::usage, "open", options_.device, probe.text, "", 0});
  std::string bdf = uri_.scheme == "pci" || uri_.scheme == "vfio" ? to_string(parse_bdf(uri_.path))
                                                                  : text_of(probe.data, "bdf");
  bdf_ = bdf;
  if (!bdf.empty()) inhabitants_ = inhabitants(parse_bdf(bdf));
  // A node's name, /dev/kz0, is what its driver logs.
  std::string node = uri_.scheme == "dev" ? fs::path(uri_.path).filename().string() : "";
  std::vector<std::string> names = ports_above(bdf);
  names.insert(names.end(), {bdf, text_of(probe.data, "driver"), node});
  kernel_ = std::make_unique<KernelLog>(names);
  taint_ = kernel_taint();
  if (!before_.resumed) write_start(probe);
  if (before_.resumed && !before_.knew_device && probe.ok)
    journal_->write({{"type", "environment"}, {"device", probe.data}});
  journal_device_process();
  if (!kernel_->unreadable().empty())
    journal_->write({{"type", "note"}, {"text", "kernel log not watched: " + kernel_->unreadable()}});
  if (died_early)
    journal_->write(
        {{"type", "note"}, {"text", "the software TPU ended before the first test and was started again"}});
  for (auto& who : inhabitants_) journal_->write({{"type", "inhabitant"}, {"text", who}});
  ready_ = begin_tests(probe);
}

// Where the sockets are, for whoever cleans up after a killed runner.
void Runner::journal_device_process() {
  if (softtpu_)
    journal_->write({{"type", "device-process"},
                     {"pid", softtpu_->pid()},
                     {"socket", softtpu_->socket()},
                     {"control", softtpu_->control()}});
}

// False: no test can run, and each has its verdict.
bool Runner::begin_tests(const ProbeResult& probe) {
  if (probe.ok) {
    if (before_.resumed) check_after_death();
    return !lost_;
  }
  if (told_to_stop()) return false;
  // A host-only test needs no device; the rest cannot be judged. Said once, not once a test.
  progress_->note(probe.text);
  progress_->silence();
  bool any = false;
  for (auto& t : tests_) {
    if (done_[t.id] > 0) continue;
    if (t.has_label("host"))
      any = true;
    else
      verdict_without_run(t, Verdict::blocked, probe.text);
  }
  return any;
}

ProbeResult Runner::look_at_health(const std::string& id) {
  ProbeResult health = check_health(test_uri_, rules());
  if (!told_to_stop())
    journal_->write(
        {{"type", "health"}, {"id", id}, {"ok", health.ok}, {"text", health.text}, {"detail", health.data}});
  return health;
}

// After a test: is the device still good? A device that comes back turns device-lost into fail.
bool Runner::settle(const TestDeclaration& t, TestOutcome& out) {
  if (out.left_running) {
    lost_ = true;
    journal_->write(
        {{"type", "device-lost"}, {"id", t.id}, {"text", "a test hangs on the device and is left alone"}},
        true);
    return false;
  }
  bool dead = device_died();
  if (t.has_label("host") && !dead) return true;
  if (!dead && out.verdict == Verdict::blocked && is_out_of_reach()) {
    out.verdict = Verdict::device_lost;  // it answered when the run began
    out.reason = "the device is no longer there: " + out.reason;
  }
  if (!dead && !needs_health_check(t, out)) return true;
  if (!dead) {
    ProbeResult health = look_at_health(t.id);
    if (told_to_stop()) return true;
    // It answers, only wrongly: that is for the tests to judge, and no reset's business.
    if (!health.ok && health.code == to_string(Errc::bad_data) && out.verdict != Verdict::device_lost)
      return true;
    if (health.ok) {
      if (out.verdict == Verdict::device_lost)
        out.verdict = Verdict::fail, out.reason = "device lost, it came back by itself: " + out.reason;
      return true;
    }
    if (out.verdict == Verdict::pass || out.verdict == Verdict::warn) {
      out.verdict = Verdict::fail;
      out.reason = "the device is not healthy afterwards: " + health.text;
    }
    if (restore_device(health.text, out)) return false;
  } else {
    // Nobody to connect to looks like a host that is not set up; but it was the device that went.
    if (out.verdict == Verdict::blocked) out.verdict = Verdict::device_lost;
    bool back = restore_device("its process ended", out);
    journal_->write({{"type", "evidence"},
                     {"id", t.id},
                     {"kind", ev::lost},
                     {"detail", {{"how", "closed"}, {"back", back}}}});
    if (back) return false;
  }
  out.verdict = Verdict::device_lost;
  lost_ = true;
  journal_->write({{"type", "device-lost"}, {"id", t.id}, {"text", out.reason}}, true);
  return false;
}

// Somebody else's device: does it not even open? What this user may not or the host cannot is another thing.
bool Runner::is_out_of_reach() const {
  ProbeResult probe = probe_device(test_uri_, rules());
  return !probe.ok && !told_to_stop() &&
         std::ranges::any_of(
             std::initializer_list<Errc>{Errc::not_found, Errc::gone, Errc::timeout, Errc::protocol},
             [&](Errc code) { return probe.code == to_string(code); });
}

// Our own device: is it gone, or going? A killed process is there for a while.
bool Runner::device_died() {
  if (!softtpu_) return false;
  if (softtpu_->running() && is_ending(softtpu_->pid()))
    for (Deadline grace(5s); softtpu_->running() && !grace.passed();) ::poll(nullptr, 0, 1);
  return !softtpu_->running();
}

// A device of our own whose death came too late to be seen by the last test's end.
void Runner::revive() {
  if (!device_died()) return;
  TestOutcome nobody;
  restore_device("its process ended between two tests", nobody);
}

bool Runner::restore_device(const std::string& why, TestOutcome& out) {
  bool restarted = false;
  auto restart = [&] {
    softtpu_.reset();
    start_softtpu();
    restarted = true;
    journal_device_process();
  };
  if (device_died()) restart();
  ProbeResult back = recover_device(test_uri_, may_reset(), rules());
  // Our own model can be power-cycled.
  if (!back.ok && softtpu_ && !restarted) {
    restart();
    back = recover_device(test_uri_, may_reset(), rules());
  }
  std::string how = restarted ? "softtpu was started again"
                              : "by " + (back.ok ? back.data.value("tried", nlohmann::json::array()).dump()
                                                 : std::string("nothing"));
  journal_->write({{"type", "recovery"},
                   {"ok", back.ok},
                   {"text", back.ok ? fmt::format("device recovered ({}) after: {}", how, why)
                                    : "device not recovered: " + back.text}},
                  true);
  if (!back.ok && told_to_stop()) return true;  // nobody waited for it
  if (!back.ok) {
    out.reason = fmt::format("{}; no recovery: {}", out.reason.empty() ? why : out.reason, back.text);
    return false;
  }
  if (out.verdict == Verdict::device_lost || out.verdict == Verdict::pass || out.verdict == Verdict::warn) {
    out.verdict = Verdict::fail;
    out.reason = fmt::format("device lost ({}), recovered: {}", why, out.reason.empty() ? how : out.reason);
  }
  return true;
}

}  // namespace kz
