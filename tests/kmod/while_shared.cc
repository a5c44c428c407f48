// SPDX-License-Identifier: GPL-2.0-or-later
// Users who share, pass on, leave behind and lose the device, which stays: files, kills, resets, time limits.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "shim/base/error.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
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
