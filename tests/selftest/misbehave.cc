// SPDX-License-Identifier: GPL-2.0-or-later
// Tests that fail, throw, hang, crash, flood and leave things behind: the runner is tested by what it makes
// of them.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/harness/test.h"

namespace kz::test {
namespace {

// A place for a test to remember something in, or to be told something by.
std::string in_run_dir(const char* name) {
  const char* dir = std::getenv("KANGZAO_RUN_DIR");
  return std::string(dir != nullptr ? dir : "/tmp") + "/" + name;
}

int runner_fd() {
  const char* fd = std::getenv("KANGZAO_FD");
  return fd != nullptr ? std::atoi(fd) : -1;
}

void send_raw(const std::string& text) { (void)!::send(runner_fd(), text.data(), text.size(), MSG_NOSIGNAL); }

// The software TPU that the runner, our parent, started.
pid_t device_process() {
  std::ifstream list("/proc/" + std::to_string(::getppid()) + "/task/" + std::to_string(::getppid()) +
                     "/children");
  for (pid_t pid; list >> pid;) {
    std::string name;
    std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
    if (name == "softtpu") return pid;
  }
  return -1;
}

KZ_TEST(selftest, passes, {.meaning = "ends well", .level = 1, .labels = {"host"}}) { EXPECT_EQ(2 + 2, 4); }

KZ_TEST(selftest, fails, {.meaning = "a check that does not hold", .level = 1, .labels = {"host"}}) {
  evidence(ev::slow, {{"what", "latency"}, {"value", 2}, {"reference", 1}, {"ratio", 2}});
  EXPECT_EQ(2 + 2, 5) << "as it must";
}

KZ_TEST(selftest, throws, {.meaning = "an error of the shim", .level = 1, .labels = {"host"}}) {
  throw Error({Errc::io, "do", "something", "it went wrong", "", 0});
}

KZ_TEST(selftest, warns, {.meaning = "right, but dirty", .level = 1, .labels = {"host"}}) {
  warn("something is dirty");
}

KZ_TEST(selftest, skips, {.meaning = "has nothing to test", .level = 1, .labels = {"host"}}) {
  skip("no such feature");
}

KZ_TEST(selftest, is_blocked, {.meaning = "cannot be run", .level = 1, .labels = {"host"}}) {
  block("no permission for it");
}

KZ_TEST(selftest, fails_sometimes,
        {.meaning = "fails for an even seed or when asked twice", .level = 1, .labels = {"host"}}) {
  std::string mark = in_run_dir("failed-once");
  int fd = ::open(mark.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0) return;
  ::close(fd);
  ADD_FAILURE() << "the first time";
}

KZ_TEST(selftest, segfaults,
        {.meaning = "dies by SIGSEGV after a dangerous step", .level = 1, .labels = {"host"}}) {
  before_danger("write through a null pointer");
  ::signal(SIGSEGV, SIG_DFL);
  ::raise(SIGSEGV);
}

KZ_TEST(selftest, aborts, {.meaning = "dies by SIGABRT", .level = 1, .labels = {"host"}}) { std::abort(); }

KZ_TEST(selftest, leaves_without_verdict,
        {.meaning = "exits before it has said anything", .level = 1, .labels = {"host"}}) {
  ::_exit(0);
}

KZ_TEST(selftest, hangs,
        {.meaning = "never ends", .level = 1, .labels = {"host"}, .limit = std::chrono::seconds(1)}) {
  for (;;) ::pause();
}

KZ_TEST(selftest, hangs_and_ignores_sigterm,
        {.meaning = "never ends and does not listen",
         .level = 1,
         .labels = {"host"},
         .limit = std::chrono::seconds(1)}) {
  ::signal(SIGTERM, SIG_IGN);
  for (;;) ::pause();
}

KZ_TEST(selftest, floods,
        {.meaning = "sends far too many records and prints without end",
         .level = 1,
         .labels = {"host"},
         .limit = std::chrono::seconds(60)}) {
  for (int i = 0; i < 25000; ++i) metric("flood", i, "count");
  for (int i = 0; i < 20000; ++i)
    (void)!::write(STDOUT_FILENO, "0123456789012345678901234567890123456789012345678901234567890123", 64);
}

KZ_TEST(selftest, speaks_last,
        {.meaning = "sends more records than are taken at once, then its verdict, and is gone",
         .level = 1,
         .labels = {"host"}}) {
  for (int i = 0; i < 250; ++i) metric("burst", i, "count");
}

KZ_TEST(selftest, leaves_a_process, {.meaning = "its child outlives it", .level = 1, .labels = {"host"}}) {
  if (::fork() == 0) {
    ::setsid();
    for (;;) ::pause();
  }
}

KZ_TEST(selftest, leaves_a_tree,
        {.meaning = "children of children outlive it and listen to nothing",
         .level = 1,
         .labels = {"host"}}) {
  if (::fork() == 0) {
    ::setsid();
    ::signal(SIGTERM, SIG_IGN);
    (void)!::fork();
    (void)!::fork();
    for (;;) ::pause();
  }
}

KZ_TEST(selftest, closes_the_socket,
        {.meaning = "cuts its line to the runner", .level = 1, .labels = {"host"}}) {
  ::close(runner_fd());
}

KZ_TEST(selftest, sends_garbage,
        {.meaning = "sends what is no record, and records of wrong types", .level = 1, .labels = {"host"}}) {
  send_raw("");
  send_raw("no json");
  send_raw(std::string(60000, '['));
  send_raw("[1,2]");
  send_raw(R"({"type":7})");
  send_raw(R"({"type":"metric","name":[],"value":"x"})");
  send_raw(R"({"type":"evidence","kind":{},"detail":null})");
  send_raw("{\"type\":\"note\",\"text\":\"\xff\xfe\"}");
  send_raw(R"({"type":"danger","step":{}})");
}

KZ_TEST(selftest, claims_a_false_verdict,
        {.meaning = "says a verdict that is not for a test to say, then leaves",
         .level = 1,
         .labels = {"host"}}) {
  send_raw(R"({"type":"verdict","verdict":"timeout","reason":"so it says"})");
  send_raw(R"({"type":"verdict","verdict":"excellent"})");
  send_raw(R"({"type":"verdict","verdict":1})");
  ::_exit(0);
}

KZ_TEST(selftest, crashes_after_its_verdict,
        {.meaning = "says pass and dies on the way out", .level = 1, .labels = {"host"}}) {
  send_raw(R"({"type":"verdict","verdict":"pass","reason":""})");
  std::abort();
}

KZ_TEST(selftest, exits_badly_after_its_verdict,
        {.meaning = "says pass and leaves with exit 23, as a leak checker does",
         .level = 1,
         .labels = {"host"}}) {
  send_raw(R"({"type":"verdict","verdict":"pass","reason":""})");
  ::_exit(23);
}

KZ_TEST(selftest, hangs_after_its_verdict,
        {.meaning = "says pass and does not leave",
         .level = 1,
         .labels = {"host"},
         .limit = std::chrono::seconds(1)}) {
  send_raw(R"({"type":"verdict","verdict":"pass","reason":""})");
  for (;;) ::pause();
}

KZ_TEST(selftest, waits_to_be_told,
        {.meaning = "announces a dangerous step, then waits for a file called go",
         .level = 1,
         .labels = {"host"},
         .limit = std::chrono::seconds(60)}) {
  before_danger("wait for somebody");
  while (::access(in_run_dir("go").c_str(), F_OK) != 0) ::poll(nullptr, 0, 10);
}

KZ_TEST(selftest, fills_the_journal,
        {.meaning = "writes 40 MB of records",
         .level = 1,
         .labels = {"host"},
         .limit = std::chrono::seconds(60)}) {
  std::string text(50'000, 'x');
  for (int i = 0; i < 800; ++i) send_raw(R"({"type":"note","text":")" + text + "\"}");
}

KZ_TEST(selftest, uses_the_device,
        {.meaning = "opens the device and leaves it well", .level = 2, .needs = {Cap::queues}}) {
  EXPECT_FALSE(device().identity().stable_id().empty());
}

KZ_TEST(selftest, fails_on_the_device,
        {.meaning = "waits for a file called go, then fails",
         .level = 2,
         .needs = {Cap::queues},
         .limit = std::chrono::seconds(60)}) {
  before_danger("wait for somebody");
  while (::access(in_run_dir("go").c_str(), F_OK) != 0) ::poll(nullptr, 0, 10);
  ADD_FAILURE() << "as it must";
}

KZ_TEST(selftest, loses_the_device,
        {.meaning = "waits for a file called go while somebody takes the device away",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::queues},
         .limit = std::chrono::seconds(60)}) {
  before_danger("lose the device");
  while (::access(in_run_dir("go").c_str(), F_OK) != 0) ::poll(nullptr, 0, 10);
  (void)device().telemetry();
}

KZ_TEST(selftest, kills_the_device,
        {.meaning = "ends the software TPU under itself", .level = 4, .labels = {"destructive", "host"}}) {
  before_danger("kill softtpu");
  pid_t device = device_process();
  ASSERT_GT(device, 0);
  ::kill(device, SIGKILL);
  auto state = [&] {  // Z: dead, and the runner has not looked yet
    std::string status;
    std::getline(std::ifstream("/proc/" + std::to_string(device) + "/stat"), status);
    auto at = status.rfind(')');
    return at == std::string::npos ? 'X' : status[at + 2];
  };
  while (state() != 'Z' && state() != 'X') ::poll(nullptr, 0, 1);
}

}  // namespace
}  // namespace kz::test
