// SPDX-License-Identifier: GPL-2.0-or-later
// Binding through sysfs: cycles, refusals and their reasons, driver_override, the function off and on the
// bus, and whether the driver answers the bus's errors.
#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <cstring>

#include "shim/base/fd.h"
#include "shim/pci/sysfs.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/growth.h"
#include "tests/kmod/load.h"
#include "tests/kmod/module.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

BindFacts facts_of(const Target& t, const std::string& slot, int error) {
  const std::string sysfs = "/sys/bus/pci/devices/" + slot;
  BindFacts f{.driver = t.driver, .error = error};
  Target other = t;
  other.slot = slot;
  f.bound = other.bound_to();
  f.override = value_of(sysfs + "/driver_override");
  f.modalias = value_of(sysfs + "/modalias");
  if (!t.file.empty()) f.aliases = module_info(t.file).aliases;
  f.driver_there = exists("/sys/bus/pci/drivers/" + t.driver);
  return f;
}

void expect_reason(const BindFacts& facts, const std::string& name) {
  const Explanation why = explain_bind_refusal(facts);
  evidence(ev::driver, {{"what", "bind_refused"},
                        {"errno", -facts.error},
                        {"explained", why.name},
                        {"text", why.text},
                        {"cure", why.cure}});
  EXPECT_LT(facts.error, 0) << "the kernel bound what it should refuse (" << name << ")";
  EXPECT_EQ(why.name, name) << why.text;
  EXPECT_FALSE(why.cure.empty());
}

// Whether one of the driver's aliases ("pci:v00001B36d*sv*...") takes the function: then a bind would
// succeed.
bool table_takes(const Target& t, const std::string& slot) {
  const std::string modalias = value_of("/sys/bus/pci/devices/" + slot + "/modalias");
  for (auto& alias : module_info(t.file).aliases)
    if (::fnmatch(alias.c_str(), modalias.c_str(), 0) == 0) return true;
  return false;
}

// A function that nobody drives and that is not like the target.
std::string idle_function(const Target& t) {
  for (auto& bdf : list_pci()) {
    const std::string slot = to_string(bdf), sysfs = "/sys/bus/pci/devices/" + slot;
    if (slot != t.slot && !exists(sysfs + "/driver") &&
        value_of(sysfs + "/modalias") != value_of(t.sysfs() + "/modalias") && !table_takes(t, slot))
      return slot;
  }
  return {};
}

// struct aer_error_inj of drivers/pci/pcie/aer_inject.c.
struct InjectedError {
  uint8_t bus, dev, fn;
  uint32_t uncorrectable, correctable, header[4], domain;
};
static_assert(sizeof(InjectedError) == 32);

// PCI Express Base Specification, 7.8.4.2 and 7.8.4.4: a bit of Uncorrectable Error Status, and how severe it
// is by default.
struct BusError {
  const char* what;
  uint32_t bit;
};

// Injects the error and returns what the kernel says until the recovery has ended, or for 15 s.
std::string recovery_from(const Target& t, const BusError& error) {
  KernelTail tail;
  const Bdf bdf = parse_bdf(t.slot);
  const InjectedError wanted{.bus = bdf.bus,
                             .dev = bdf.device,
                             .fn = bdf.function,
                             .uncorrectable = error.bit,
                             .correctable = 0,
                             .header = {},
                             .domain = bdf.domain};
  before_danger(fmt::format("inject an error of the bus: {}", error.what));
  Fd fd(::open("/dev/aer_inject", O_WRONLY | O_CLOEXEC));
  if (!fd || ::write(fd.get(), &wanted, sizeof wanted) != sizeof wanted)
    skip(fmt::format("the error cannot be injected: {}", std::strerror(errno)));
  std::string log;
  wait_until(15s, [&] {
    log += tail.take();
    return log.find("recovery successful") != std::string::npos ||
           log.find("recovery failed") != std::string::npos || log.find("can't recover") != std::string::npos;
  });
  return log;
}

}  // namespace

KZ_TEST(kmod_bind, again_and_again,
        {.meaning = "unbinding and binding for a long time takes nothing of the kernel for good",
         .level = 3,
         .labels = takes_driver_away(),
         .limit = 240s,
         .scaled = true}) {
  const Target t = find_target();
  GiveBack back(t);
  expect_log(t.slot);
  before_danger("unbind and bind the driver many times");
  if (int rc = t.unbind(); rc != 0) FAIL() << "unbind: " << std::strerror(-rc);
  judge_growth("bind", static_cast<uint64_t>(24 * scale()), [&] {
    if (int rc = t.bind(); rc != 0)
      throw_errno("bind", t.slot, -rc, "what the last binding took was not given back");
    if (!t.wait_ready(10s))
      throw Error({Errc::timeout, "wait for the node of", t.slot, "nothing in 10 s", "", 0});
    if (int rc = t.unbind(); rc != 0) throw_errno("unbind", t.slot, -rc);
  });
}

KZ_TEST(kmod_bind, refusals,
        {.meaning =
             "already bound, an override, an id that is not in the table, no driver: refused and told apart",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 90s}) {
  const Target t = find_target();
  GiveBack back(t);
  expect_log(t.slot);
  expect_log(t.driver);
  expect_reason(facts_of(t, t.slot, t.bind()), "already_bound");
  EXPECT_EQ(t.bound_to(), t.driver);
  before_danger("unbind the driver and try bindings that must fail");
  ASSERT_EQ(t.unbind(), 0);
  ASSERT_EQ(write_file(t.sysfs() + "/driver_override", "kz_nobody"), 0);
  expect_reason(facts_of(t, t.slot, t.bind()), "overridden");
  ASSERT_EQ(write_file(t.sysfs() + "/driver_override", "\n"), 0);
  if (const std::string idle = t.file.empty() ? "" : idle_function(t); !idle.empty()) {
    Target other = t;
    other.slot = idle;
    const int rc = other.bind();
    if (rc == 0) other.unbind();
    BindFacts facts = facts_of(t, idle, rc);
    expect_reason(facts, "not_in_id_table");
  }
  if (t.can_reload()) {
    ASSERT_EQ(t.unload_when_free(10s), 0);
    expect_reason(facts_of(t, t.slot, t.bind()), "no_such_driver");
    ASSERT_EQ(t.load(), 0);
  }
}

KZ_TEST(
    kmod_bind, override_itself,
    {.meaning = "driver_override with the driver's own name binds it, and cleared again the table decides",
     .level = 1,
     .labels = takes_driver_away(),
     .limit = 60s}) {
  const Target t = find_target();
  GiveBack back(t);
  before_danger("unbind the driver and bind it by driver_override");
  ASSERT_EQ(t.unbind(), 0);
  ASSERT_EQ(write_file(t.sysfs() + "/driver_override", t.driver), 0);
  EXPECT_EQ(t.bind(), 0);
  EXPECT_TRUE(t.wait_ready(10s));
  EXPECT_EQ(write_file(t.sysfs() + "/driver_override", "\n"), 0);
  ASSERT_EQ(t.unbind(), 0);
  EXPECT_EQ(t.bind(), 0);
  EXPECT_TRUE(t.wait_ready(10s));
}

KZ_TEST(kmod_vanish, idle,
        {.meaning = "the idle function taken off the bus and found again gets its driver and node back",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s,
         .scaled = true}) {
  const Target t = find_target();
  GiveBack back(t);
  expect_log(t.slot);
  const auto bars = t.bars();
  for (int i = 0; i < static_cast<int>(5 * scale()); ++i) {
    before_danger("remove the function from the bus");
    ASSERT_EQ(t.remove_function(), 0);
    EXPECT_FALSE(t.present());
    if (t.ours() && exists(t.node)) wrong("left_behind", "the node outlives its function");
    ASSERT_EQ(t.rescan(), 0);
    ASSERT_TRUE(wait_until(10s, [&] { return t.present(); }));
    ASSERT_TRUE(t.wait_ready(10s));
    check_bars(t, bars);
  }
}

KZ_TEST(
    kmod_bind, answers_bus_errors,
    {.meaning = "a non-fatal and a fatal error of the bus are given to the driver and recovered, the second "
                "with a reset of the link",
     .level = 4,
     .labels = takes_driver_away(),
     .limit = 90s}) {
  const Target t = find_target();
  if (!exists("/dev/aer_inject"))
    skip("module aer_inject is not loaded (modprobe aer_inject); only through it can errors be made here");
  if (!exists(t.sysfs() + "/aer_dev_nonfatal")) skip("the function has no Advanced Error Reporting");
  GiveBack back(t);
  for (auto word : {"AER", "pcieport", "aer"}) expect_log(word);
  expect_log(t.slot);
  for (auto& error :
       {BusError{"completion timeout, non-fatal", 1u << 14}, BusError{"malformed TLP, fatal", 1u << 18}}) {
    const std::string log = recovery_from(t, error);
    if (log.find("can't recover") != std::string::npos) {
      evidence(ev::driver, {{"what", "no_error_handlers"}, {"log", log}});
      const std::string text =
          "the driver has no error_detected callback: an error of the bus leaves the device as it is";
      if (t.ours())
        ADD_FAILURE() << text;
      else
        warn(text);
      return;
    }
    if (log.find("recovery successful") == std::string::npos)
      wrong("not_recovered", fmt::format("{}: not recovered: {}", error.what, log));
    expect_works(t, fmt::format("after {}", error.what));
    if (HasFailure()) {
      evidence(ev::driver, {{"what", "recovered_without_effect"}, {"error", error.what}, {"log", log}});
      return;
    }
  }
}

}  // namespace kz::test
