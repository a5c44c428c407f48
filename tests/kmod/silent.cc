// SPDX-License-Identifier: GPL-2.0-or-later
// A device that stops answering while its driver probes it: every read of its registers gives all ones from
// one moment on, as with a link that went. The moment is moved through the whole probe.
//
// Memory Space Enable of the bridge above is cleared (PCI-to-PCI Bridge Architecture Specification 1.2,
// 3.2.5.3: then the bridge answers to no memory address below it); configuration space goes on as before.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "shim/base/fd.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/growth.h"
#include "tests/kmod/resources.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

namespace fs = std::filesystem;

constexpr off_t command_at = 4;
constexpr uint16_t memory_space = 1 << 1;

// The bridge above the function, with no other device below it.
class BridgeAbove {
 public:
  explicit BridgeAbove(const Target& t) {
    std::error_code ec;
    const fs::path above = fs::canonical(t.sysfs(), ec).parent_path();
    const std::string slot = above.filename();
    if (ec || !value_of(above / "class").starts_with("0x0604"))
      skip("no bridge is above the function: nothing can be switched off to make it silent");
    for (auto& entry : fs::directory_iterator(above, ec))
      if (const std::string name = entry.path().filename();
          name.size() == t.slot.size() && name.ends_with(".0") && name[4] == ':' &&
          name.substr(0, name.size() - 1) != t.slot.substr(0, t.slot.size() - 1))
        skip(fmt::format("{} is below {} too, and would be silent with it", name, slot));
    name_ = slot;
    config_ = Fd(::open((above / "config").c_str(), O_RDWR | O_CLOEXEC));
    if (!config_ || ::pread(config_.get(), &command_, sizeof command_, command_at) != sizeof command_)
      block(fmt::format("the configuration space of {} cannot be written", slot));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
    const Fd end(ends[0]);
    alive_ = Fd(ends[1]);
    keeper_ = ::fork();
    if (keeper_ < 0) throw_errno("start", "a process");
    if (keeper_ == 0) {
      alive_.reset();
      char c;
      while (::read(end.get(), &c, 1) > 0) {
      }
      ::_exit(answer(true) ? 0 : 1);
    }
  }
  ~BridgeAbove() {
    alive_.reset();
    ::waitpid(keeper_, nullptr, 0);
  }
  BridgeAbove(const BridgeAbove&) = delete;

  const std::string& name() const { return name_; }
  bool answer(bool on) const {
    const auto value = static_cast<uint16_t>(on ? command_ : command_ & ~memory_space);
    return ::pwrite(config_.get(), &value, sizeof value, command_at) == sizeof value;
  }
  // Silent after `delay`, by a process of its own: its id, to be waited for.
  pid_t silent_after(double delay) const {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    const timespec wait{static_cast<time_t>(delay),
                        static_cast<long>((delay - static_cast<double>(static_cast<time_t>(delay))) * 1e9)};
    ::nanosleep(&wait, nullptr);
    ::_exit(answer(false) ? 0 : 1);
  }

 private:
  std::string name_;
  Fd config_;
  uint16_t command_ = 0;
  pid_t keeper_ = -1;  // lets the bridge answer again however this process ends, once `alive_` is closed
  Fd alive_;
};

double seconds_now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Binds with the device silent from `delay` on, and takes away again what was bound. Whether it was.
bool bind_to_silent(const Target& t, const BridgeAbove& bridge, double delay) {
  if (delay <= 0 && !bridge.answer(false)) block("the bridge above cannot be switched");
  const pid_t switcher = delay > 0 ? bridge.silent_after(delay) : -1;
  const int rc = t.bind();
  int status = 0;
  if (switcher > 0 && (::waitpid(switcher, &status, 0) != switcher || status != 0))
    block("the bridge above cannot be switched");
  const bool bound = t.bound_to() == t.driver;
  if (rc != 0 && bound)
    wrong("probe_errno",
          fmt::format("the bind failed ({}), and yet the driver is bound", std::strerror(-rc)));
  if (bound)
    if (const int gone = t.unbind(); gone != 0)
      wrong("unbind", fmt::format("unbind from a silent device: {}", std::strerror(-gone)));
  if (!bridge.answer(true)) block("the bridge above cannot be switched back");
  return bound;
}

}  // namespace

KZ_TEST(
    kmod_fail, silent_device,
    {.meaning = "a device that is silent from the start or from any moment of its probe: it fails cleanly "
                "or is unbound cleanly, nothing is left behind, and the next probe works",
     .level = 4,
     .labels = takes_driver_away(),
     .limit = 400s,
     .scaled = true}) {
  const Target t = find_target();
  GiveBack back(t);  // once the bridge answers again
  const BridgeAbove bridge(t);
  expect_log(t.slot);
  expect_log(t.driver);
  expect_log(bridge.name());
  before_danger("make the device silent while the driver probes");
  ASSERT_EQ(t.unbind(), 0);
  const double begin = seconds_now();
  ASSERT_EQ(t.bind(), 0);
  const double whole = seconds_now() - begin;
  ASSERT_TRUE(t.wait_ready(10s));
  ASSERT_EQ(t.unbind(), 0);
  const Kernel bare = look_at_kernel();
  constexpr int moments = 8;
  int bound = 0, all = 0, failed_late = 0;
  bool pools = false;
  judge_growth("silent_probe", static_cast<uint64_t>(16 * scale()), [&] {
    // From the start, and at one moment of each half: every cycle can leak, and all moments are met.
    for (double part :
         {0.0, (all % moments + 0.5) / (2 * moments), 0.5 + (all % moments + 0.5) / (2 * moments)}) {
      const bool lived = bind_to_silent(t, bridge, part * whole);
      bound += lived;
      failed_late += !lived && part > 0;
    }
    ++all;
    if (!std::exchange(pools, exists(t.sysfs() + "/pools")) && pools)
      wrong("left_behind", "DMA pools are left behind by a failed probe: " + value_of(t.sysfs() + "/pools"));
  });
  for (auto& name : left_behind(bare, look_at_kernel()))
    wrong("left_behind", "left behind by failed probes: " + name);
  metric("kmod.silent_device.probe", whole, "s");
  metric("kmod.silent_device.failed_late", failed_late, "probes");
  metric("kmod.silent_device.lived", bound, "probes");
  EXPECT_EQ(t.bind(), 0);
  EXPECT_TRUE(t.wait_ready(10s));
  expect_works(t);
}

}  // namespace kz::test
