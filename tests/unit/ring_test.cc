// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/ring.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <thread>

#include "shim/base/error.h"
#include "shim/base/fd.h"

namespace kz {
namespace {

class RingTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    int fds[] = {doorbell.get(), vector.get()};
    if (GetParam()) ring.register_files(fds);
  }
  Ring ring{8};
  Fd doorbell = make_eventfd(true), vector = make_eventfd(false);
};

TEST_P(RingTest, RingsADoorbellOnSubmit) {
  ring.write_eventfd(doorbell.get(), 1);
  EXPECT_EQ(drain_eventfd(doorbell.get()), 0u) << "nothing happens before submit";
  ring.submit();
  EXPECT_EQ(drain_eventfd(doorbell.get()), 1u);
  for (const auto& done : ring.peek()) EXPECT_EQ(done.result, 8) << "a success, where it is reported at all";
}

TEST_P(RingTest, HandsABatchOverAtOnce) {
  for (int i = 0; i < 20; ++i) ring.write_eventfd(doorbell.get(), 1);  // more than the ring has entries
  ring.submit();
  EXPECT_EQ(drain_eventfd(doorbell.get()), 20u);
}

TEST_P(RingTest, RingsAndWaitsWithOneCall) {
  uint64_t count = 0;
  std::thread device([&] {
    while (drain_eventfd(doorbell.get()) == 0) std::this_thread::yield();
    signal_eventfd(vector.get(), 3);
  });
  ring.write_eventfd(doorbell.get(), 1);
  ring.read_eventfd(vector.get(), &count, 2);
  bool came = false;
  for (Deadline deadline(5s); !came && !deadline.passed();)
    for (auto& done : ring.wait(deadline))
      if (done.tag == 2) came = done.result == 8;
  device.join();
  EXPECT_TRUE(came);
  EXPECT_EQ(count, 3u);
}

TEST_P(RingTest, WaitsNoLongerThanItsDeadline) {
  uint64_t count = 0;
  ring.read_eventfd(vector.get(), &count, 2);
  auto start = Clock::now();
  EXPECT_TRUE(ring.wait(Deadline(30ms)).empty());
  EXPECT_GE(Clock::now() - start, 30ms);
  EXPECT_LT(Clock::now() - start, 2s);
  // The read is still under way: what comes now is not lost.
  signal_eventfd(vector.get(), 7);
  auto done = ring.wait(Deadline(5s));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(count, 7u);
}

TEST_P(RingTest, CancelsAWaitWithoutTakingTheCount) {
  uint64_t count = 0;
  ring.read_eventfd(vector.get(), &count, 2);
  ring.submit();
  ring.cancel(2, 3);
  int cancelled = 0, results = 0;
  for (Deadline deadline(5s); results < 2 && !deadline.passed();)
    for (auto& done : ring.wait(deadline)) {
      ++results;
      cancelled += done.tag == 2 && done.result == -ECANCELED;
    }
  EXPECT_EQ(cancelled, 1);
  signal_eventfd(vector.get(), 4);
  EXPECT_EQ(drain_eventfd(vector.get()), 4u);
}

TEST_P(RingTest, ReportsWhatCannotBeDone) {
  int closed;
  {
    Fd gone = make_eventfd(true);
    closed = gone.get();
  }
  ring.write_eventfd(closed, 9);
  auto done = ring.wait(Deadline(5s));
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].result, -EBADF);
}

INSTANTIATE_TEST_SUITE_P(Files, RingTest, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "registered" : "plain"; });

// A container that does not let io_uring through.
TEST(RingSetUp, SaysWhatForbidsIt) {
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    sock_fprog program{4, code};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      ::_exit(100);
    try {
      Ring ring(8);
    } catch (const Error& e) {
      bool named = e.info().remedy.find("kernel.io_uring_disabled") != std::string::npos;
      ::_exit(e.code() == Errc::permission && named ? 0 : 1);
    }
    ::_exit(2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kz
