// SPDX-License-Identifier: GPL-2.0-or-later
// Error paths: the first, second, third ... allocation of a probe, an open, a call is made to fail
// (Documentation/ fault-injection, "fail-nth"). Each must fail cleanly and the next attempt must work.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/growth.h"
#include "tests/kmod/resources.h"
#include "tests/kmod/slope.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

constexpr const char* fail_nth = "/proc/self/fail-nth";
constexpr int most = 2000;

// Allocations that may wait are spared unless this is off.
class Injection {
 public:
  Injection() {
    if (!exists(fail_nth))
      skip(
          "this kernel cannot make allocations fail (CONFIG_FAULT_INJECTION); use a debug kernel of the lab");
    // register_irq_proc() of kernel/irq/proc.c goes on where a file of /proc/irq cannot be made, and
    // unregister_irq_proc() warns that it is not there.
    expect_report(" remove_proc_entry+");
    for (auto& [path, value] : settings_) {
      before_.push_back(value_of(path));
      write_file(path, value);
    }
  }
  ~Injection() {
    for (size_t i = 0; i < before_.size(); ++i)
      if (!before_[i].empty()) write_file(settings_[i].first, before_[i]);
  }
  Injection(const Injection&) = delete;

 private:
  const std::vector<std::pair<std::string, std::string>> settings_{
      {"/sys/kernel/debug/failslab/ignore-gfp-wait", "N"},
      {"/sys/kernel/debug/failslab/verbose", "0"},
      {"/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N"},
      {"/sys/kernel/debug/fail_page_alloc/min-order", "0"},
      {"/sys/kernel/debug/fail_page_alloc/verbose", "0"}};
  std::vector<std::string> before_;
};

struct Attempt {
  int rc = 0;
  bool reached = false;  // an allocation was made to fail
};

// Runs `act` in a process of its own with its nth allocation failing.
Attempt with_failure(int nth, const std::string& what, const std::function<int()>& act) {
  const int packed = in_time(fmt::format("{} with allocation {} failing", what, nth), step_limit, [&] {
    Fd fd(::open(fail_nth, O_RDWR | O_CLOEXEC));
    const std::string n = std::to_string(nth);
    if (!fd || ::write(fd.get(), n.data(), n.size()) < 0) return -1;
    const int rc = act();
    char left[16] = {};
    // 0: used up, so one failed; else so many were to come still.
    ssize_t got = ::pread(fd.get(), left, sizeof left - 1, 0);
    if (::pwrite(fd.get(), "0", 1, 0) < 0 || got < 0) return -1;
    return (std::atoi(left) == 0 ? 1 << 16 : 0) | (-rc & 0xffff);
  });
  if (packed < 0) block("allocations cannot be made to fail: " + std::string(fail_nth));
  return {-(packed & 0xffff), (packed & 1 << 16) != 0};
}

// How many allocations `reached` can make fail: doubled until none does, then halved. At most `most`.
int count_of(const std::function<bool(int nth)>& reached) {
  int below = 0, above = 1;
  for (; above <= most && reached(above); above *= 2) below = above;
  if (above > most) {
    if (reached(most)) return most;
    above = most;
  }
  while (above - below > 1) {
    const int middle = below + (above - below) / 2;
    (reached(middle) ? below : above) = middle;
  }
  return below;
}

// The driver's probe with its nth allocation failing, and what is left of it taken away again.
class FailingProbe {
 public:
  explicit FailingProbe(const Target& t) : t_(t) {}
  Attempt bind(int nth) const {
    return with_failure(nth, "bind",
                        [&] { return write_file("/sys/bus/pci/drivers/" + t_.driver + "/bind", t_.slot); });
  }
  int unbind_if_bound() const { return t_.bound_to() == t_.driver ? t_.unbind() : 0; }
  int count() const {
    const int n = count_of([&](int nth) {
      const bool reached = bind(nth).reached;
      unbind_if_bound();
      return reached;
    });
    if (n < 4) skip(fmt::format("of the probe's allocations {} can be made to fail", n));
    return n;
  }

 private:
  const Target& t_;
};

}  // namespace

KZ_TEST(
    kmod_fail, probe,
    {.meaning = "allocations of a probe made to fail in turn, all of them in the longer profiles: it fails "
                "cleanly, and the next probe works",
     .level = 4,
     .labels = takes_driver_away(),
     .limit = 600s,
     .scaled = true}) {
  const Target t = find_target();
  GiveBack back(t);
  const Injection on;
  expect_log(t.slot);
  expect_log(t.driver);
  before_danger("make allocations fail while the driver probes");
  if (value_of(t.sysfs() + "/numa_node") != "-1" && !value_of(t.sysfs() + "/numa_node").empty())
    warn("the function has a NUMA node: its probe may run in another thread, where nothing is made to fail");
  ASSERT_EQ(t.unbind(), 0);
  const FailingProbe probe(t);
  const int last = probe.count();
  const Kernel bare = look_at_kernel();
  // 80 of them in the quick profile, a debug kernel under emulation takes a second for each.
  const int step = std::max(1, static_cast<int>(last / (80 * scale())));
  int failed = 0, lived = 0;
  for (int nth = 1; nth <= last; nth += step) {
    const Attempt a = probe.bind(nth);
    const bool bound = t.bound_to() == t.driver;
    if (a.rc != 0 && bound)
      ADD_FAILURE() << "allocation " << nth << ": the bind failed, and yet the driver is bound";
    bound ? ++lived : ++failed;
    if (bound) {
      ASSERT_EQ(t.unbind(), 0) << "after allocation " << nth;
    }
    if (a.rc != 0 && a.rc != -ENOMEM && a.rc != -ENODEV && a.rc != -ENOSPC && a.rc != -EIO)
      evidence(ev::driver, {{"what", "probe_errno"}, {"allocation", nth}, {"errno", -a.rc}});
    if (HasFailure()) return;
  }
  for (auto& name : left_behind(bare, look_at_kernel()))
    ADD_FAILURE() << "left behind by failed probes: " << name;
  metric("kmod.fail_nth.allocations", last, "allocations");
  metric("kmod.fail_nth.probe_failed", failed, "probes");
  metric("kmod.fail_nth.probe_lived", lived, "probes");
  EXPECT_EQ(t.bind(), 0);
  EXPECT_TRUE(t.wait_ready(10s));
  expect_works(t);
}

KZ_TEST(kmod_fail, probe_leak,
        {.meaning = "a probe that fails in its middle again and again loses nothing",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 300s}) {
  const Target t = find_target();
  GiveBack back(t);
  const Injection on;
  expect_log(t.slot);
  expect_log(t.driver);
  before_danger("make allocations fail while the driver probes");
  ASSERT_EQ(t.unbind(), 0);
  const FailingProbe probe(t);
  const int last = probe.count();
  // A spread of them once a cycle: what an error path forgets is lost at every failure after it was taken.
  const int step = std::max(1, last / 12);
  judge_growth("failing_probe", 16, [&] {
    for (int nth = 1; nth <= last; nth += step) {
      probe.bind(nth);
      probe.unbind_if_bound();
    }
  });
}

KZ_TEST(kmod_fail, calls,
        {.meaning = "each allocation of open, context, queue, buffer, HBM and submit made to fail: an errno, "
                    "and no loss",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 300s}) {
  const Target t = find_target();
  need_our_calls(t);
  const Injection on;
  expect_log(t.slot);
  int failed = 0;
  for (int nth = 1; nth <= most; ++nth) {
    const Attempt a = with_failure(nth, "a whole user", [&] {
      try {
        User user(t.node);
        const int rc = user.run(user.copies(1)[0]);
        return rc < 0 ? rc : 0;
      } catch (const Error& e) {
        return e.info().sys_errno != 0 ? -e.info().sys_errno : -EIO;
      }
    });
    if (!a.reached) break;
    failed += a.rc != 0;
  }
  if (failed < 4) skip(fmt::format("of a user's allocations {} can be made to fail", failed));
  metric("kmod.fail_nth.calls_failed", failed, "users");
  Fd fd(User::open_node(t.node));
  kz_ioc_telemetry tel{};
  EXPECT_TRUE(
      wait_until(10s, [&] { return call(fd.get(), KZ_IOC_TELEMETRY, tel) == 0 && tel.t.contexts == 0; }))
      << tel.t.contexts << " contexts of failed users are left";
  expect_works(t);
}

}  // namespace kz::test
