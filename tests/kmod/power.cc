// SPDX-License-Identifier: GPL-2.0-or-later
// Power: runtime suspend and wake, idle and between bursts of load, and the system's sleep as far as it can
// be tried without sleeping.
#include <fmt/format.h>
#include <poll.h>

#include <cstring>
#include <sstream>

#include "tests/harness/session.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/load.h"
#include "tests/kmod/module.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

// The device's power policy, given back at the end.
class RuntimePm {
 public:
  explicit RuntimePm(const Target& t)
      : folder_(t.sysfs() + "/power/"),
        control_(value_of(folder_ + "control")),
        delay_(value_of(folder_ + "autosuspend_delay_ms")) {}
  ~RuntimePm() {
    write_file(folder_ + "control", control_);
    if (!delay_.empty()) write_file(folder_ + "autosuspend_delay_ms", delay_);
  }
  RuntimePm(const RuntimePm&) = delete;
  void allow(int delay_ms) {
    write_file(folder_ + "autosuspend_delay_ms", std::to_string(delay_ms));
    write_file(folder_ + "control", "auto");
  }
  void forbid() { write_file(folder_ + "control", "on"); }
  std::string status() const { return value_of(folder_ + "runtime_status"); }
  bool can() const { return !control_.empty() && status() != "unsupported"; }

 private:
  std::string folder_, control_, delay_;
};

// By the mount table: statfs() gives the type of the server's file system.
bool lies_on_9p(const std::string& folder) {
  std::istringstream mounts(text_file("/proc/mounts"));
  std::string what, where, type, rest;
  while (mounts >> what >> where >> type && std::getline(mounts, rest))
    if (type == "9p" && folder.starts_with(where)) return true;
  return false;
}

// Makes the device answer.
int use(const Target& t) {
  if (!t.ours()) return text_file(t.sysfs() + "/config", nullptr, 64).size() >= 64 ? 0 : -EIO;
  Fd fd(User::open_node(t.node));
  kz_ioc_telemetry tel{};
  int rc = -EAGAIN;
  wait_until(10s, [&] { return (rc = call(fd.get(), KZ_IOC_TELEMETRY, tel)) != -EAGAIN; });
  return rc != 0 ? rc : tel.t.version == KZ_TEL_VERSION ? 0 : -EIO;
}

// One of the reference driver's settings, at an unusual value. Other drivers have none that we know.
class Setting {
 public:
  explicit Setting(const Target& t)
      : file_(t.ours() ? t.class_file("timeout_ms") : ""), was_(value_of(file_)) {
    if (!was_.empty()) write_file(file_, "12345");
  }
  ~Setting() {
    if (!was_.empty()) write_file(file_, was_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  void expect_kept() const {
    if (const std::string now = value_of(file_); !was_.empty() && now != "12345")
      wrong("asleep", fmt::format("{} was 12345 before the device slept and is {} now", file_, now));
  }

 private:
  std::string file_, was_;
};

}  // namespace

KZ_TEST(kmod_power, idle_and_wake,
        {.meaning = "an idle device goes to sleep where that is allowed, and every use wakes it",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s,
         .scaled = true}) {
  const Target t = find_target();
  RuntimePm pm(t);
  if (!pm.can()) skip("this kernel or driver has no runtime power management");
  expect_log(t.slot);
  before_danger("let the device suspend at run time");
  const Setting setting(t);
  pm.allow(20);
  use(t);
  if (!wait_until(8s, [&] { return pm.status() == "suspended"; })) {
    if (!t.ours()) skip("the driver does not let the idle device sleep (runtime_status " + pm.status() + ")");
    FAIL() << "the idle device does not go to sleep within 8 s; runtime_status is " << pm.status();
  }
  unsigned slept = 0;
  for (int i = 0; i < static_cast<int>(20 * scale()); ++i) {
    slept += wait_until(5s, [&] { return pm.status() == "suspended"; });
    const int rc = in_time("wake the device by using it", step_limit, [&] { return use(t); });
    ASSERT_EQ(rc, 0) << "a sleeping device does not answer: " << std::strerror(-rc);
  }
  metric("kmod.runtime_suspends", slept, "suspends");
  // The rounds after a wake count: a reference that waking leaves behind lets it sleep once and never again.
  const auto rounds = static_cast<unsigned>(20 * scale());
  const std::string said = fmt::format("the idle device went to sleep in {} of {} rounds", slept, rounds);
  if (slept * 10 < rounds * 9) t.ours() || slept < 2 ? wrong("asleep", said) : warn(said);
  setting.expect_kept();
}

KZ_TEST(kmod_power, under_load,
        {.meaning = "runtime suspend is allowed while bursts of load come and go: no command is lost",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s,
         .scaled = true}) {
  const Target t = find_target();
  need_load(t);
  RuntimePm pm(t);
  if (!pm.can()) skip("this kernel or driver has no runtime power management");
  expect_log(t.slot);
  before_danger("let the device suspend at run time between bursts");
  uint64_t commands = 0;
  for (int i = 0; i < static_cast<int>(8 * scale()) && !HasFailure(); ++i) {
    pm.allow(static_cast<int>(rng()() % 15));
    Load load(t);
    for (int n = 0; n < 5; ++n) {
      (n & 1) != 0 ? pm.forbid() : pm.allow(0);
      ::poll(nullptr, 0, static_cast<int>(rng()() % 40));
    }
    commands += load.commands();
    load.expect_clean_end();
    ::poll(nullptr, 0, static_cast<int>(rng()() % 60));
  }
  metric("kmod.power.commands", static_cast<double>(commands), "commands");
}

KZ_TEST(kmod_power, system_sleep,
        {.meaning = "the driver's part of a system sleep: users are told, settings and buffers stay, the "
                    "device works again",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 90s}) {
  const Target t = find_target();
  if (!exists("/sys/power/pm_test"))
    skip("this kernel cannot try a sleep without sleeping (CONFIG_PM_SLEEP_DEBUG)");
  if (lies_on_9p(Session::get().run_dir()))
    skip(
        "the run's folder is on 9p, which does not come back from a sleep; write it elsewhere (--output "
        "/tmp/run)");
  const std::string states = value_of("/sys/power/state");
  const std::string state = states.find("freeze") != std::string::npos ? "freeze"
                            : states.find("mem") != std::string::npos  ? "mem"
                                                                       : "";
  if (state.empty()) skip("this kernel knows no sleep (/sys/power/state: " + states + ")");
  expect_log(t.slot);
  expect_log("PM:");
  std::unique_ptr<User> user;
  if (t.ours()) user = std::make_unique<User>(t.node);
  const Setting setting(t);
  const std::string delay = "/sys/module/suspend/parameters/pm_test_delay", delay_was = value_of(delay);
  if (!delay_was.empty()) write_file(delay, "1");
  before_danger("suspend all devices of this machine for a moment");
  ASSERT_EQ(write_file("/sys/power/pm_test", "devices"), 0);
  KernelTail tail;
  const Outcome o = bounded(60s, [&] { return write_file("/sys/power/state", state); });
  write_file("/sys/power/pm_test", "none");
  if (!delay_was.empty()) write_file(delay, delay_was);
  ASSERT_TRUE(o.in_time) << "the machine does not come out of the sleep: " << o.hang;
  if (o.value != 0) {
    const std::string log = tail.take();
    // "PM: Device 0000:01:00.0 failed to suspend: error -5" (drivers/base/power/main.c)
    for (auto& who : {t.slot, t.driver})
      if (log.find(who) != std::string::npos && log.find("failed to suspend") != std::string::npos)
        return wrong("asleep", fmt::format("{} refuses to sleep: {}", t.driver, std::strerror(-o.value)));
    skip(fmt::format("the sleep was refused: {}", std::strerror(-o.value)));
  }
  EXPECT_EQ(in_time("use the device after the sleep", step_limit, [&] { return use(t); }), 0);
  if (!t.ours()) return;
  const int rc = user->submit(user->copies(1));
  if (rc != -ESTALE)
    wrong("asleep", fmt::format("a queue from before the sleep answers {}, wanted ESTALE", rc));
  setting.expect_kept();
  expect_works(t);
}

}  // namespace kz::test
