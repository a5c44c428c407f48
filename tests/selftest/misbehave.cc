// SPDX-License-Identifier: GPL-2.0-or-later
// Tests that fail, throw, hang, crash, flood and leave things behind: the runner is tested by what it makes of them.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/harness/test.h"

namespace kz::test {
namespace {

using Labels = std::vector<std::string>;

KZ_TEST(selftest, passes, {.meaning = "ends well", .level = 1, .labels = {"host"}}) { EXPECT_EQ(2 + 2, 4); }

KZ_TEST(selftest, fails, {.meaning = "a check that does not hold", .level = 1, .labels = {"host"}}) {
  evidence(ev::slow, {{"what", "latency"}, {"value", 2}, {"reference", 1}, {"ratio", 2}});
  EXPECT_EQ(2 + 2, 5) << "as it must";
}

KZ_TEST(selftest, throws, {.meaning = "an error of the shim", .level = 1, .labels = {"host"}}) {
  throw Error({Errc::io, "do", "something", "it went wrong", "", 0});
}

KZ_TEST(selftest, warns, {.meaning = "right, but dirty", .level = 1, .labels = {"host"}}) { warn("something is dirty"); }

KZ_TEST(selftest, skips, {.meaning = "has nothing to test", .level = 1, .labels = {"host"}}) { skip("no such feature"); }

KZ_TEST(selftest, is_blocked, {.meaning = "cannot be run", .level = 1, .labels = {"host"}}) { block("no permission for it"); }

KZ_TEST(selftest, fails_sometimes, {.meaning = "fails for an even seed or when asked twice", .level = 1, .labels = {"host"}}) {
  // A file in the run's folder remembers that it failed once.
  std::string mark = std::string(std::getenv("KANGZAO_RUN_DIR") != nullptr ? std::getenv("KANGZAO_RUN_DIR") : "/tmp") + "/failed-once";
  int fd = ::open(mark.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return;
  ::close(fd);
  ADD_FAILURE() << "the first time";
}

KZ_TEST(selftest, segfaults, {.meaning = "dies by SIGSEGV after a dangerous step", .level = 1, .labels = {"host"}}) {
  before_danger("write through a null pointer");
  ::signal(SIGSEGV, SIG_DFL);
  ::raise(SIGSEGV);
}

KZ_TEST(selftest, aborts, {.meaning = "dies by SIGABRT", .level = 1, .labels = {"host"}}) { std::abort(); }

KZ_TEST(selftest, leaves_without_verdict, {.meaning = "exits before it has said anything", .level = 1, .labels = {"host"}}) { ::_exit(0); }

KZ_TEST(selftest, hangs, {.meaning = "never ends", .level = 1, .labels = {"host"}, .limit = std::chrono::seconds(1)}) {
  for (;;) ::pause();
}

KZ_TEST(selftest, hangs_and_ignores_sigterm, {.meaning = "never ends and does not listen", .level = 1, .labels = {"host"}, .limit = std::chrono::seconds(1)}) {
  ::signal(SIGTERM, SIG_IGN);
  for (;;) ::pause();
}

KZ_TEST(selftest, floods, {.meaning = "sends far too many records and prints without end", .level = 1, .labels = {"host"}, .limit = std::chrono::seconds(60)}) {
  for (int i = 0; i < 25000; ++i) metric("flood", i, "count");
  for (int i = 0; i < 20000; ++i) (void)!::write(STDOUT_FILENO, "0123456789012345678901234567890123456789012345678901234567890123", 64);
}

KZ_TEST(selftest, leaves_a_process, {.meaning = "its child outlives it", .level = 1, .labels = {"host"}}) {
  if (::fork() == 0) {
    ::setsid();
    for (;;) ::pause();
  }
}

KZ_TEST(selftest, closes_the_socket, {.meaning = "cuts its line to the runner", .level = 1, .labels = {"host"}}) {
  if (const char* fd = std::getenv("KANGZAO_FD")) ::close(std::atoi(fd));
}

}  // namespace
}  // namespace kz::test
