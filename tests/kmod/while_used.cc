// SPDX-License-Identifier: GPL-2.0-or-later
// The module or the device is taken away while somebody uses it: refused, or safe with nothing lost.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/load.h"
#include "tests/kmod/module.h"
#include "tests/kmod/slope.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

// A way to hold the device. Each calls ready() when it does, and returns when it is told to, or when the
// device is gone and it has noticed.
struct Way {
  const char* name;
  std::function<void(const std::string& node, const OtherUser::Link& link)> hold;
};

void hold_open(const std::string& node, const OtherUser::Link& link) {
  Fd fd(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) fd = Fd(::open(node.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) throw_errno("open", node);
  link.ready();
  link.wait_for_end();
}

void hold_map(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  if (user.map(65536) == nullptr) throw_errno("map", node);
  user.close();  // the mapping alone keeps the file
  link.ready();
  link.wait_for_end();
}

void hold_poll(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  link.ready();
  for (pollfd p{user.fd(), POLLIN, 0}; !link.told_to_end();)
    if (::poll(&p, 1, 50) == 1 && (p.revents & POLLHUP) != 0) return;
}

void hold_ring(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  Ring ring(8);
  int fd = user.fd();
  if (io_uring_register_files(&ring.raw(), &fd, 1) < 0) throw_errno("register", node);
  user.close();
  link.ready();
  link.wait_for_end();
}

// Commands are taken and nobody picks up their completions.
void hold_commands(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  user.submit(user.copies(64));
  link.ready();
  while (!link.told_to_end() && user.submit(user.copies(64)) != -ENODEV) ::poll(nullptr, 0, 5);
}

void hold_resets(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  link.ready();
  for (int rc = 0; !link.told_to_end() && rc != -ENODEV;) {
    kz_ioc_reset r{};
    r.kind = KZ_RESET_KIND_FUNCTION;
    rc = call(user.fd(), KZ_IOC_RESET, r);
  }
}

std::vector<Way> ways(const Target& t) {
  if (!t.ours()) return {{"open", hold_open}};
  std::vector<Way> out{{"open", hold_open},
                       {"polled", hold_poll},
                       {"commands in flight", hold_commands},
                       {"being reset", hold_resets},
                       {"DMA by ioctl", [](auto& node, auto& link) { keep_busy(node, link, false); }}};
  if (exists(t.sysfs() + "/resource4")) out.push_back({"mapped", hold_map});
  if (Ring::allowed()) {
    out.push_back({"registered with io_uring", hold_ring});
    out.push_back({"DMA by io_uring", [](auto& node, auto& link) { keep_busy(node, link, true); }});
  }
  return out;
}

std::string some_node(const Target& t) {
  auto nodes = nodes_of(t);
  if (nodes.empty()) skip("the driver " + t.driver + " offers no node that could be held open");
  return nodes.front();
}

// Ends a holder; what it has to say against the driver.
void end_holder(OtherUser& other, const char* name, bool device_stayed) {
  if (!other.end(30)) {
    evidence(ev::driver, {{"what", "hangs"}, {"step", name}, {"stack", other.where()}});
    ADD_FAILURE() << name << ": the user hangs: " << other.where();
    return other.kill();
  }
  const Seen& s = other.seen();
  if (WIFSIGNALED(other.status()))
    ADD_FAILURE() << name << ": the user died by signal " << WTERMSIG(other.status());
  if (s.twice != 0 || s.never != 0)
    wrong("lost",
          fmt::format("{}: {} commands ended twice, {} never, of {}", name, s.twice, s.never, s.submitted));
  if (device_stayed && (s.ended_lost != 0 || s.last_error != 0))
    wrong("lost", fmt::format("{}: {} commands lost, errno {}, though the device stayed", name, s.ended_lost,
                              s.last_error));
}

// The device does what it should, with a user of its own.
void expect_works(const Target& t) {
  if (!t.ours()) return;
  User user(t.node);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
}

void bind_again(const Target& t) {
  const int rc = t.bind();
  if (rc != 0 || !t.wait_ready(10s)) {
    wrong("bind",
          fmt::format("after an unbind the driver does not take the function again: {}", std::strerror(-rc)));
    t.restore();
  }
}

struct Holdings {
  uint64_t hbm_free = 0;
  uint32_t contexts = 0, queues_free = 0;
  long long pins = 0;
  bool operator==(const Holdings&) const = default;
};

long long pins_out() {
  text_file("/proc/sys/vm/stat_refresh");
  long long got = 0, given = 0;
  const std::string all = text_file("/proc/vmstat");
  for (auto [word, value] :
       {std::pair<const char*, long long*>{"nr_foll_pin_acquired ", &got}, {"nr_foll_pin_released ", &given}})
    if (auto at = all.find(word); at != std::string::npos)
      *value = std::atoll(all.c_str() + at + std::strlen(word));
  return got - given;
}

Holdings holdings(int fd) {
  kz_ioc_telemetry t{};
  kz_info i{};
  Holdings h;
  if (call(fd, KZ_IOC_TELEMETRY, t) == 0) h.hbm_free = t.t.hbm_free_bytes, h.contexts = t.t.contexts;
  if (call(fd, KZ_IOC_INFO, i) == 0) h.queues_free = i.queues_free;
  h.pins = pins_out();
  return h;
}

}  // namespace

KZ_TEST(
    kmod_used, unload_refused,
    {.meaning =
         "the module cannot be unloaded while its device is held in any way, and can be at once afterwards",
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
    for (int i = 0; i < 3; ++i) {
      const int rc = t.unload();
      if (rc == -EAGAIN || rc == -EBUSY) continue;
      wrong("no_reference",
            fmt::format("{}: unloading ended with {} instead of being refused", way.name, rc));
      break;
    }
    end_holder(other, way.name, true);
    if (int rc = t.unload_when_free(15s); rc != 0) {
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
    for (unsigned n = 0; n <= 0x13; ++n) {
      char args[512] = {};
      const uint32_t sizes[] = {sizeof(kz_info),
                                16,
                                16,
                                32,
                                32,
                                32,
                                sizeof(kz_ioc_queue_stat),
                                40,
                                40,
                                48,
                                48,
                                48,
                                32,
                                40,
                                16,
                                32,
                                32,
                                sizeof(kz_ioc_telemetry),
                                16,
                                16};
      std::memcpy(args, &sizes[n], 4);
      const int rc = raw_ioctl(user.fd(), _IO(KZ_IOC_TYPE, n), args);
      // What was completed before may still be handed out.
      const bool reap = n == (KZ_IOC_REAP & 0xff);
      if (rc != -ENODEV && !(reap && rc == 0))
        wrong("errno", fmt::format("ioctl {:#x} on a removed device ended with {}, wanted ENODEV", n, rc));
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
    if (!t.module.empty() && t.unload() != -EAGAIN)
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
  std::vector<std::unique_ptr<OtherUser>> racers;
  for (int i = 0; i < 2; ++i)
    racers.push_back(std::make_unique<OtherUser>([&, ours = t.ours()](const OtherUser::Link& link) {
      link.ready();
      while (!link.told_to_end()) {
        Fd fd(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
        ++link.seen()->submitted;
        if (!fd && errno != ENOENT && errno != ENODEV && errno != ENXIO && errno != EACCES)
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
    kmod_used, fork_dup_pass,
    {.meaning =
         "a copy of the file, by fork, dup or over a socket, that is closed takes nothing from the others",
     .level = 4,
     .labels = takes_driver_away(),
     .limit = 90s}) {
  const Target t = find_target();
  need_our_calls(t);
  auto user = std::make_unique<User>(t.node);
  for (int i = 0; i < 10; ++i) {
    ASSERT_GT(user->submit(user->copies(8)), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(user->fd());
      ::_exit(0);
    }
    ::close(::dup(user->fd()));
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    std::vector<kz_done> done;
    ASSERT_EQ(user->reap(done, 8, 8), 0) << "the queue was closed with a copy of the file";
    EXPECT_EQ(done.size(), 8u);
    for (auto& d : done) EXPECT_EQ(d.status, KZ_ST_OK);
  }
  // Over a socket: the receiver has it alone afterwards.
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
  iovec iov{&byte, 1};
  msghdr m{};
  m.msg_iov = &iov;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = user->fd();
  std::memcpy(CMSG_DATA(c), &sent, sizeof sent);
  ASSERT_EQ(::sendmsg(pair[0], &m, 0), 1);
  user->close();
  ASSERT_EQ(::recvmsg(pair[1], &m, MSG_CMSG_CLOEXEC), 1);
  int received = -1;
  std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof received);
  user->take(Fd(received));
  EXPECT_EQ(user->run(user->copies(1)[0]), KZ_ST_OK) << "the queue did not survive being passed on";
  // In a message that nobody receives.
  Fd watcher(User::open_node(t.node));
  const int last = user->fd();
  std::memcpy(CMSG_DATA(c), &last, sizeof last);
  m.msg_controllen = sizeof control;
  ASSERT_EQ(::sendmsg(pair[0], &m, 0), 1);
  user->close();
  ::close(pair[0]);
  ::close(pair[1]);
  if (!wait_until(10s, [&] { return holdings(watcher.get()).contexts == 0; }))
    wrong("lost", "a file that ended in a socket keeps its context");
}

KZ_TEST(kmod_used, killed,
        {.meaning = "users killed with commands in flight leave no memory, context, queue or pin behind",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s,
         .scaled = true}) {
  const Target t = find_target();
  need_our_calls(t);
  Fd watcher(User::open_node(t.node));
  ASSERT_TRUE(watcher);
  const Holdings before = holdings(watcher.get());
  const auto rounds = static_cast<uint64_t>(10 * scale());
  before_danger("kill users with commands in flight");
  for (uint64_t i = 0; i < rounds; ++i) {
    OtherUser ring([&](auto& link) { keep_busy(t.node, link, Ring::allowed()); });
    OtherUser plain([&](auto& link) { hold_commands(t.node, link); });
    ASSERT_TRUE(ring.wait_ready()) << ring.seen().text;
    ASSERT_TRUE(plain.wait_ready()) << plain.seen().text;
    ring.kill();
    plain.kill();
    if (ring.pid() > 0 || !ring.where().empty())
      wrong("hangs", "a killed user does not die: " + ring.where());
    Holdings now;
    if (wait_until(15s, [&] { return (now = holdings(watcher.get())) == before; })) continue;
    wrong("killed_leak",
          fmt::format(
              "after a user was killed: HBM {} of {}, contexts {} of {}, queues {} of {}, pins {} of {}",
              now.hbm_free, before.hbm_free, now.contexts, before.contexts, now.queues_free,
              before.queues_free, now.pins, before.pins));
    break;
  }
  metric("kmod.killed.excluded_above", 100 * excluded_rate(rounds), "%");
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

KZ_TEST(kmod_used, reset_and_submit,
        {.meaning = "resets and commands at the same time never wait for each other for ever",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s}) {
  const Target t = find_target();
  need_our_calls(t);
  expect_log(t.slot);
  before_danger("reset the device while others submit");
  std::vector<std::unique_ptr<OtherUser>> users;
  for (int i = 0; i < 2; ++i)
    users.push_back(std::make_unique<OtherUser>([&, i](const OtherUser::Link& link) {
      link.ready();
      // A reset ends contexts; each user comes again at once.
      while (!link.told_to_end()) try {
          keep_busy(t.node, link, i == 0 && Ring::allowed());
        } catch (const Error&) {
        }
    }));
  for (auto& u : users) ASSERT_TRUE(u->wait_ready());
  Fd fd(User::open_node(t.node));
  unsigned good = 0;
  const Outcome done = bounded(60s, [&] {
    int refused = 0;
    for (int i = 0; i < 12; ++i) {
      kz_ioc_reset r{};
      const uint32_t kinds[] = {KZ_RESET_KIND_FUNCTION, KZ_RESET_KIND_FIRMWARE, KZ_RESET_KIND_DEVICE};
      r.kind = kinds[i % 3];
      const int rc = call(fd.get(), KZ_IOC_RESET, r);
      refused += rc != 0 && rc != -EOPNOTSUPP;
    }
    return refused;
  });
  if (!done.in_time) wrong("hangs", "12 resets beside commands do not end within 60 s: " + done.hang);
  EXPECT_EQ(done.value, 0) << "resets were refused";
  for (auto& u : users) {
    if (!u->end(30)) wrong("hangs", "a user hangs beside resets: " + u->where());
    if (u->seen().twice != 0) wrong("twice", fmt::format("{} commands ended twice", u->seen().twice));
    good += u->seen().ended_well > 0;
  }
  EXPECT_GT(good, 0u) << "no command ended well between the resets";
  expect_works(t);
}

KZ_TEST(kmod_used, time_limit,
        {.meaning = "a command over its time limit ends, its user is never left in an uninterruptible wait",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 120s}) {
  const Target t = find_target();
  need_our_calls(t);
  expect_log(t.slot);
  OtherUser other([&](const OtherUser::Link& link) {
    User user(t.node);
    kz_ioc_hbm h{};
    h.ctx = user.ctx;
    h.len = std::min<uint64_t>(user.info().max_xfer, 64 << 20);
    if (call(user.fd(), KZ_IOC_HBM_ALLOC, h) != 0)
      throw Error({Errc::no_memory, "allocate", "HBM", "refused", "", 0});
    kz_cmd slow{};
    slow.opcode = KZ_OP_MARCH;
    slow.u.march.addr = h.addr;
    slow.u.march.len = h.len;
    slow.u.march.nops = KZ_MARCH_OPS;
    for (unsigned i = 0; i < KZ_MARCH_OPS; ++i)
      slow.u.march.ops[i] = (i & 1) != 0 ? KZ_MARCH_W1 : KZ_MARCH_W0;
    link.ready();
    for (int i = 0; i < 60 && link.seen()->ended_lost < 3; ++i) {
      std::vector<kz_done> done;
      if (user.submit({slow}, 1) != 1 || user.reap(done, 1, 1) != 0 || done.size() != 1) {
        ++link.seen()->never;
        break;
      }
      ++(done[0].status == KZ_ST_EXPIRED ? link.seen()->ended_lost : link.seen()->ended_well);
    }
    if (user.run(kz_cmd{}) != KZ_ST_OK) ++link.seen()->twice;  // the queue must go on
  });
  ASSERT_TRUE(other.wait_ready()) << other.seen().text;
  if (!other.wait_ended(90)) {
    wrong("hangs", "a user with commands over their time hangs: " + other.where());
    return;
  }
  EXPECT_EQ(other.seen().never, 0u) << "a command over its time never ended";
  EXPECT_EQ(other.seen().twice, 0u) << "the queue does not go on after a command over its time";
  if (other.seen().ended_lost == 0)
    warn("the device was faster than every limit: no command ran out of time");
  expect_works(t);
}

}  // namespace kz::test
