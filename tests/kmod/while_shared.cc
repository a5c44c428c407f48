// SPDX-License-Identifier: GPL-2.0-or-later
// Users who share, pass on, leave behind and lose the device, which stays: files, kills, resets, time limits.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "shim/base/error.h"
#include "shim/base/units.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/growth.h"
#include "tests/kmod/holders.h"
#include "tests/kmod/load.h"
#include "tests/kmod/slope.h"

namespace kz::test {

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

KZ_TEST(kmod_used, again_and_again,
        {.meaning = "users that come, work and go take nothing of the kernel for good",
         .level = 3,
         .labels = takes_driver_away(),
         .limit = 240s,
         .scaled = true}) {
  const Target t = find_target();
  need_our_calls(t);
  // Several a cycle, so that a page that each of them loses stands out.
  judge_growth("users", static_cast<uint64_t>(16 * scale()), [&] {
    for (int i = 0; i < 8; ++i) {
      User user(t.node);
      if (int rc = user.run(user.copies(1)[0]); rc != 0)
        throw Error({Errc::status, "copy", t.node, fmt::format("the command ended with {}", rc), "", 0});
    }
  });
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
  struct Rounds {
    uint32_t commands;
    double took_s;           // without a limit
    double enough_s = 0.05;  // 1 ms, two ticks of a clock of 100 Hz, and as much again
  };
  void* shared = ::mmap(nullptr, sizeof(Rounds), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* rounds = new (shared) Rounds;
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
    // The commands of one round stand behind each other; more of them until the last is late for sure.
    std::vector<kz_done> done;
    const auto round = [&](uint32_t limit_ms) {
      const int want = static_cast<int>(rounds->commands);
      const std::vector<kz_cmd> all(rounds->commands, slow);
      if (user.submit(all, limit_ms) != want) return false;
      for (int seen = 0; seen < want; seen += static_cast<int>(done.size())) {
        if (user.reap(done, static_cast<uint32_t>(want), 1) != 0 || done.empty()) return false;
        for (auto& d : done)
          ++(d.status == KZ_ST_EXPIRED || d.status == KZ_ST_LOST ? link.seen()->ended_lost
                                                                 : link.seen()->ended_well);
      }
      return true;
    };
    for (rounds->commands = 1;; rounds->commands *= 2) {
      const auto start = Clock::now();
      if (!round(0)) ++link.seen()->never;
      rounds->took_s = std::chrono::duration<double>(Clock::now() - start).count();
      if (rounds->took_s > rounds->enough_s || rounds->commands * 2 >= 1u << User::order) break;
    }
    link.seen()->ended_lost = 0;
    for (int i = 0; i < 60 && link.seen()->ended_lost < 3; ++i)
      if (!round(1)) {
        ++link.seen()->never;
        break;
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
  const Rounds r = *rounds;
  ::munmap(shared, sizeof r);
  metric("kmod.time_limit.without", 1e3 * r.took_s, "ms");
  metric("kmod.time_limit.expired", static_cast<double>(other.seen().ended_lost), "commands");
  if (other.seen().ended_lost == 0 && r.took_s > r.enough_s)
    wrong("limit", fmt::format("no command of {} that take {:.0f} ms ended for its limit of 1 ms", r.commands,
                               1e3 * r.took_s));
  expect_works(t);
  if (other.seen().ended_lost == 0 && r.took_s <= r.enough_s)
    skip(fmt::format("{} of the longest commands take {:.1f} ms together: faster than a limit can be",
                     r.commands, 1e3 * r.took_s));
}

}  // namespace kz::test
