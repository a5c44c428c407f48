// SPDX-License-Identifier: GPL-2.0-or-later
// The module or the device is taken away while somebody uses it: refused, or safe with nothing lost.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/harness/test.h"
#include "tests/kmod/calls.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/holders.h"
#include "tests/kmod/load.h"
#include "tests/kmod/module.h"
#include "tests/kmod/slope.h"

namespace kz::test {
namespace {

void bind_again(const Target& t) {
  const int rc = t.bind();
  if (rc != 0 || !t.wait_ready(10s)) {
    wrong("bind",
          fmt::format("after an unbind the driver does not take the function again: {}", std::strerror(-rc)));
    t.restore();
  }
}

// The module went from below an open file. Where a layer of the kernel owns the file (a clock, an input
// device) that is safe; where the module does, its code is gone and the file's last call with it.
void end_above_nothing(const Target& t, OtherUser& other, const char* way) {
  const std::string said = fmt::format("{}: unloading ended with 0 instead of being refused", way);
  if (t.ours()) {
    wrong("no_reference", said);
    return end_holder(other, way, false);
  }
  KernelTail tail;
  end_holder(other, way, false);
  const std::string log = tail.take();
  static constexpr const char* harm[] = {"BUG:", "Oops", "general protection", "WARNING:", "refcount_t:"};
  if (WIFSIGNALED(other.status()) ||
      std::ranges::any_of(harm, [&](auto& word) { return log.find(word) != std::string::npos; }))
    return wrong("no_reference", said + ", and the kernel came to harm when the user ended");
  evidence(ev::driver,
           {{"what", "unloaded_below_user"}, {"way", way}, {"text", "and it ended without harm"}});
}

}  // namespace

KZ_TEST(kmod_used, unload_refused,
        {.meaning = "the module cannot be unloaded while its device is held in any way, or that is safe; and "
                    "can be afterwards",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 180s}) {
  const Target t = find_target();
  need_module(t);
  const std::string node = some_node(t);
  GiveBack back(t);
  expect_log(t.slot);
  for (auto& way : ways(t)) {
    OtherUser other([&](const OtherUser::Link& link) { way.hold(node, link); });
    ASSERT_TRUE(other.wait_ready()) << way.name << ": " << other.seen().text;
    before_danger(fmt::format("try to unload the module while its device is {}", way.name));
    int rc = -EAGAIN;
    for (int i = 0; i < 3 && (rc == -EAGAIN || rc == -EBUSY); ++i) rc = t.unload();
    if (rc == 0) {
      end_above_nothing(t, other, way.name);
    } else {
      if (rc != -EAGAIN && rc != -EBUSY)
        wrong("errno", fmt::format("{}: unloading ended with {} instead of being refused", way.name,
                                   std::strerror(-rc)));
      end_holder(other, way.name, true);
    }
    if (is_loaded(t.module)) rc = t.unload_when_free(15s);
    if (rc != 0) {
      wrong("never_unloads", fmt::format("{}: 15 s after its user ended the module has {} users ({})",
                                         way.name, module_users(t.module), std::strerror(-rc)));
      return;
    }
    ASSERT_EQ(t.load(), 0);
    ASSERT_TRUE(t.wait_ready(10s));
  }
}

KZ_TEST(kmod_used, unbind,
        {.meaning =
             "the function is unbound while its device is held in any way: users are told, nothing is lost",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 240s}) {
  const Target t = find_target();
  const std::string node = some_node(t);
  GiveBack back(t);
  expect_log(t.slot);
  const long long pins = pins_out();
  for (auto& way : ways(t)) {
    OtherUser other([&](const OtherUser::Link& link) { way.hold(node, link); });
    ASSERT_TRUE(other.wait_ready()) << way.name << ": " << other.seen().text;
    before_danger(fmt::format("unbind the driver while its device is {}", way.name));
    EXPECT_EQ(t.unbind(), 0) << way.name;
    EXPECT_EQ(t.bound_to(), "");
    if (way.notices && t.ours() && !other.wait_ended(15))
      wrong("not_told",
            fmt::format("{}: 15 s after the unbind its user still waits: {}", way.name, other.where()));
    end_holder(other, way.name, false);
    bind_again(t);
    expect_works(t);
  }
  if (t.ours() && !wait_until(10s, [&] { return pins_out() <= pins; }))
    wrong("pins", fmt::format("{} pages stay pinned", pins_out() - pins));
}

KZ_TEST(kmod_used, late_calls,
        {.meaning = "after removal every call on an open file says ENODEV, mappings fault, and close is safe",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s}) {
  const Target t = find_target();
  need_our_calls(t);
  need_aperture(t);
  GiveBack back(t);
  expect_log(t.slot);
  for (int round = 0; round < 4; ++round) {
    User user(t.node);
    char* map = user.map(65536);
    ASSERT_NE(map, nullptr);
    ASSERT_FALSE(faults(map));
    ASSERT_GT(user.submit(user.copies(16)), 0);
    before_danger("unbind the driver below an open file with a mapping and commands");
    ASSERT_EQ(t.unbind(), 0);
    if (!faults(map)) wrong("mmap", "a mapping can still be read after the device was removed");
    for (auto& s : call_shapes()) {
      std::vector<char> args(s.size);
      set32(args.data(), s.size);
      const int rc = raw_call(user.fd(), s.number, args.data());
      // What was completed before may still be handed out.
      if (rc != -ENODEV && !(s.number == KZ_IOC_REAP && rc == 0))
        wrong("errno", fmt::format("{} on a removed device ended with {}, wanted ENODEV", s.name, rc));
    }
    int error = 0;
    EXPECT_EQ(user.map(4096, &error), nullptr);
    EXPECT_EQ(error, ENODEV) << "mmap on a removed device";
    pollfd p{user.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 2000), 1);
    EXPECT_NE(p.revents & (POLLHUP | POLLERR), 0) << "poll does not tell that the device went";
    if (Ring::allowed()) {
      Ring ring(8);
      ring.add(user.fd(), KZ_URING_SUBMIT, {.cmd = {}, .queue = user.queue, .timeout_ms = 0, .result_at = 0},
               1);
      ring.submit();
      auto got = ring.answers(1, 10);
      ASSERT_EQ(got.size(), 1u) << "an io_uring request to a removed device never ends";
      EXPECT_EQ(got[0].res, -ENODEV);
    }
    EXPECT_LT(User::open_node(t.node), 0) << "the node of a removed device can be opened";
    if (t.can_reload() && t.unload() != -EAGAIN)
      wrong("no_reference", "the module can be unloaded while a file of a removed device is open");
    if ((round & 1) != 0) bind_again(t);  // closed before, or after, the device is back
    user.close();
    if ((round & 1) == 0) bind_again(t);
    EXPECT_TRUE(faults(map)) << "a late mapping came back to life";
    expect_works(t);
  }
}

KZ_TEST(kmod_used, open_races_remove,
        {.meaning = "open, calls and close at the same time as unbind and bind: a defined errno or success",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 240s,
         .scaled = true}) {
  const Target t = find_target();
  const std::string node = some_node(t);
  GiveBack back(t);
  expect_log(t.slot);
  // A node for one user alone says so to the second at any time.
  int second = 0;
  if (Fd first(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)); first)
    if (Fd again(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)); !again) second = errno;
  std::vector<std::unique_ptr<OtherUser>> racers;
  for (int i = 0; i < 2; ++i)
    racers.push_back(std::make_unique<OtherUser>([&, ours = t.ours()](const OtherUser::Link& link) {
      link.ready();
      while (!link.told_to_end()) {
        Fd fd(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
        ++link.seen()->submitted;
        if (!fd && errno != ENOENT && errno != ENODEV && errno != ENXIO && errno != EACCES && errno != second)
          link.seen()->last_error = errno;
        if (!fd) continue;
        ++link.seen()->ended_well;
        if (!ours) continue;
        kz_info info{};
        kz_ioc_ctx c{};
        for (int rc : {call(fd.get(), KZ_IOC_INFO, info), call(fd.get(), KZ_IOC_CTX_CREATE, c)})
          if (rc != 0 && rc != -ENODEV && rc != -ESTALE && rc != -EIO && rc != -EBUSY && rc != -ENOSPC &&
              rc != -ENOMEM)
            link.seen()->last_error = -rc;
      }
    }));
  for (auto& r : racers) ASSERT_TRUE(r->wait_ready());
  before_danger("unbind and bind while others open the device");
  const auto rounds = static_cast<uint64_t>(15 * scale());
  for (uint64_t i = 0; i < rounds; ++i) {
    ASSERT_EQ(t.unbind(), 0);
    ASSERT_EQ(t.bind(), 0);
    ASSERT_TRUE(t.wait_ready(10s));
    ::poll(nullptr, 0, static_cast<int>(rng()() % 20));
  }
  uint64_t opens = 0;
  for (auto& r : racers) {
    end_holder(*r, "a racer", false);
    opens += r->seen().ended_well;
    if (int e = r->seen().last_error; e != 0)
      wrong("errno", fmt::format("a racer was told {} ({})", e, std::strerror(e)));
  }
  metric("kmod.opens_raced", static_cast<double>(opens), "opens");
  metric("kmod.open_races_remove.excluded_above", 100 * excluded_rate(rounds), "%");
  expect_works(t);
}

KZ_TEST(
    kmod_used, reload_under_load,
    {.meaning = "unbind, unload, load and bind under load, again and again: nobody hangs, nothing is lost",
     .level = 4,
     .labels = takes_driver_away(),
     .limit = 300s,
     .scaled = true}) {
  const Target t = find_target();
  need_load(t);
  need_module(t);
  GiveBack back(t);
  expect_log(t.slot);
  expect_log(t.module);
  // quick 20, night 1000
  const auto rounds = static_cast<uint64_t>(scale() >= 60 ? 1000 : 20 * scale());
  uint64_t commands = 0, clean = 0;
  for (uint64_t i = 0; i < rounds && !HasFailure(); ++i) {
    Load load(t);
    ::poll(nullptr, 0, static_cast<int>(rng()() % 100));
    before_danger(fmt::format("reload {} of {} under load", i + 1, rounds));
    ASSERT_EQ(t.unbind(), 0);
    commands += load.commands();
    load.expect_cut_off();
    if (int rc = t.unload_when_free(15s); rc != 0) {
      wrong("never_unloads",
            fmt::format("reload {}: {} with {} users", i + 1, std::strerror(-rc), module_users(t.module)));
      return;
    }
    ASSERT_EQ(t.load(), 0);
    ASSERT_TRUE(t.wait_ready(10s));
    clean += HasFailure() ? 0 : 1;
  }
  metric("kmod.reload_under_load.clean", static_cast<double>(clean), "reloads");
  metric("kmod.reload_under_load.commands", static_cast<double>(commands), "commands");
  // 0 of N: with 95% confidence fewer than one in this many fails.
  metric("kmod.reload_under_load.excluded_above", 100 * excluded_rate(clean), "%");
  expect_works(t);
}

KZ_TEST(kmod_vanish, under_load,
        {.meaning = "the function is taken off the bus under load and found again, and works",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 180s,
         .scaled = true}) {
  const Target t = find_target();
  need_load(t);
  GiveBack back(t);
  expect_log(t.slot);
  const auto rounds = static_cast<uint64_t>(5 * scale());
  const auto bars = t.bars();
  for (uint64_t i = 0; i < rounds && !HasFailure(); ++i) {
    Load load(t);
    before_danger("remove the function from the bus under load");
    ASSERT_EQ(t.remove_function(), 0);
    EXPECT_FALSE(t.present());
    load.expect_cut_off();
    ASSERT_EQ(t.rescan(), 0);
    ASSERT_TRUE(wait_until(10s, [&] { return t.present(); })) << "not found again";
    ASSERT_TRUE(t.wait_ready(10s)) << "the driver does not take the function after a rescan";
    check_bars(t, bars);
    expect_works(t);
  }
  metric("kmod.remove_and_rescan.excluded_above", 100 * excluded_rate(rounds), "%");
}

}  // namespace kz::test
