// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/kangzao/runner/kernel_log.h"
#include "tools/kangzao/runner/one_test.h"
#include "tools/kangzao/runner/process.h"

namespace kz {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Captured shell(const std::string& script, std::chrono::milliseconds limit = 10s,
               const CaptureRules& rules = {}) {
  return run_captured({"/bin/sh", "-c", script}, {{"KZ_WORD", "hello"}}, limit, rules);
}

TEST(RunCaptured, GivesOutputAndStatus) {
  Captured got = shell("echo $KZ_WORD; echo oops >&2; exit 7");
  EXPECT_EQ(got.output, "hello\n");
  EXPECT_EQ(got.errors, "oops\n");
  ASSERT_TRUE(WIFEXITED(got.status));
  EXPECT_EQ(WEXITSTATUS(got.status), 7);
  EXPECT_FALSE(got.timed_out);
  EXPECT_EQ(describe_status(got.status), "exit 7");
}

TEST(LastLine, IsTheLastThatSaysSomething) {
  EXPECT_EQ(last_line("one\ntwo\n\n"), "two");
  EXPECT_EQ(last_line("one"), "one");
  EXPECT_EQ(last_line("\n"), "");
}

TEST(RunCaptured, AProgramThatIsNotThere) {
  Captured got = run_captured({"/nonexistent/program"}, {}, 10s);
  ASSERT_TRUE(WIFEXITED(got.status));
  EXPECT_EQ(WEXITSTATUS(got.status), 127);
}

TEST(RunCaptured, NamesTheSignal) {
  Captured got = shell("kill -SEGV $$");
  EXPECT_THAT(describe_status(got.status), HasSubstr("signal 11"));
}

TEST(RunCaptured, EndsAtTheLimitWhateverTheProgramIgnores) {
  Deadline taken(60s);
  Captured got = shell("trap '' TERM; echo begun; while :; do sleep 1; done", 300ms);
  EXPECT_TRUE(got.timed_out);
  EXPECT_EQ(got.status, -1);
  EXPECT_EQ(got.output, "begun\n");
  EXPECT_LT(taken.elapsed(), 20s);
}

TEST(RunCaptured, AGrandchildThatHoldsThePipeDoesNotHoldUs) {
  Deadline taken(60s);
  Captured got = shell("sleep 30 & echo done; exit 3", 25s);
  EXPECT_LT(taken.elapsed(), 20s);
  EXPECT_EQ(got.output, "done\n");
  ASSERT_TRUE(WIFEXITED(got.status));
  EXPECT_EQ(WEXITSTATUS(got.status), 3);
}

TEST(RunCaptured, StopsWhenTold) {
  int asked = 0;
  Deadline taken(60s);
  Captured got = shell("sleep 30", 25s, {.stop = [&] { return ++asked > 2; }});
  EXPECT_TRUE(got.timed_out);
  EXPECT_LT(taken.elapsed(), 20s);
}

TEST(RunCaptured, LeavesAloneWhatMayNotBeKilled) {
  std::string pid_file = ::testing::TempDir() + "kz-pid-" + std::to_string(::getpid());
  Captured got = shell("trap '' TERM; echo $$ > " + pid_file + "; while :; do sleep 1; done", 300ms,
                       {.may_kill = false});
  EXPECT_TRUE(got.timed_out);
  pid_t pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(::kill(pid, 0), 0);
  ::kill(-pid, SIGKILL);
  int status = 0;
  EXPECT_TRUE(wait_for_child(pid, status, Deadline(10s)));
  fs::remove(pid_file);
}

TEST(RunCaptured, KeepsNoMoreThanItsBound) {
  Captured got = shell("head -c 6000000 /dev/zero", 30s);
  EXPECT_GE(got.output.size(), 4u << 20);
  EXPECT_LT(got.output.size(), 5'000'000u);
  EXPECT_EQ(got.status, 0);
}

TEST(IsEnding, SeesAKilledProcessThatNobodyHasWaitedFor) {
  pid_t pid = spawn({"/bin/sleep", "50"}, {}, {}, -1);
  EXPECT_FALSE(is_ending(pid));
  ::kill(pid, SIGKILL);
  for (Deadline grace(10s); !is_ending(pid) && !grace.passed();) ::poll(nullptr, 0, 1);
  EXPECT_TRUE(is_ending(pid));
  int status = 0;
  EXPECT_TRUE(wait_for_child(pid, status, Deadline(10s)));
}

TEST(ProcessUsage, CountsDescriptors) {
  auto before = process_usage(::getpid());
  int fd = ::dup(0);
  auto after = process_usage(::getpid());
  ::close(fd);
  EXPECT_EQ(after["fds"].get<int>(), before["fds"].get<int>() + 1);
  EXPECT_GT(after["resident_kib"].get<uint64_t>(), 100u);
  EXPECT_TRUE(process_usage(-1).empty());
}

// Programs that are no tests: what the runner makes of a process that says nothing.
class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    std::string pattern = ::testing::TempDir() + "kz-run-test-XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
    become_subreaper();
  }
  ~RunTest() override { fs::remove_all(dir_); }

  TestOutcome run(const std::string& script, double limit_s = 20, bool may_kill = true) {
    declaration_.id = "a.b";
    declaration_.suite = "a";
    declaration_.test = "b";
    declaration_.limit_s = limit_s;
    declaration_.program = dir_ + "/program";
    std::ofstream(declaration_.program) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(declaration_.program, fs::perms::owner_all);
    TestRun r{.test = declaration_,
              .uri = "softtpu:",
              .profile = "quick",
              .run_dir = dir_,
              .seed = 42,
              .may_kill = may_kill,
              .record = [&](nlohmann::json record, bool) { records_.push_back(std::move(record)); },
              .stop = [&] { return stop_; }};
    r.state = [] { return std::string("asked the device"); };
    return run_test(r);
  }

  std::string dir_;
  TestDeclaration declaration_;
  std::vector<nlohmann::json> records_;
  bool stop_ = false;
};

TEST_F(RunTest, TellsTheTestWhatItNeedsToKnow) {
  run("echo \"$1 $KANGZAO_DEVICE $KANGZAO_SEED $KANGZAO_PROFILE $KANGZAO_RUN_DIR\"; test -S "
      "/proc/self/fd/$KANGZAO_FD && "
      "echo socket");
  TestOutcome out = run("echo \"$1 $KANGZAO_DEVICE $KANGZAO_SEED $KANGZAO_PROFILE $KANGZAO_RUN_DIR\"");
  EXPECT_EQ(out.output, "--gtest_filter=a.b softtpu: 42 quick " + dir_ + "\n");
}

TEST_F(RunTest, NoVerdictIsACrash) {
  TestOutcome out = run("exit 0");
  EXPECT_EQ(out.verdict, Verdict::crash);
  EXPECT_THAT(out.reason, HasSubstr("without a verdict"));
  EXPECT_THAT(run("kill -ABRT $$").reason, HasSubstr("signal 6"));
  EXPECT_THAT(records_, IsEmpty());
}

TEST_F(RunTest, TheLimitEndsItAndSaysWhereItHung) {
  TestOutcome out = run("trap '' TERM; while :; do sleep 1; done", 0.5);
  EXPECT_EQ(out.verdict, Verdict::timeout);
  EXPECT_FALSE(out.left_running);
  EXPECT_THAT(out.hang, HasSubstr("syscall"));
  EXPECT_THAT(out.hang, HasSubstr("asked the device"));
  EXPECT_GE(out.seconds, 0.5);
}

TEST_F(RunTest, WhatMayNotBeKilledIsLeft) {
  TestOutcome out = run("echo $$; trap '' TERM; while :; do sleep 1; done", 0.5, false);
  EXPECT_EQ(out.verdict, Verdict::timeout);
  EXPECT_TRUE(out.left_running);
  pid_t pid = static_cast<pid_t>(std::stol(out.output));
  EXPECT_EQ(::kill(pid, 0), 0);
  ::kill(-pid, SIGKILL);
  int status = 0;
  EXPECT_TRUE(wait_for_child(pid, status, Deadline(10s)));
}

TEST_F(RunTest, LeftoversAreFoundAndEnded) {
  TestOutcome out = run("setsid sh -c 'trap \"\" TERM; sleep 60 & sleep 60' & sleep 0.1; exit 0");
  EXPECT_GE(out.leftovers, 1);
  EXPECT_TRUE(children().empty());
}

TEST_F(RunTest, ALeftoverCountsOnce) {
  TestOutcome out = run("sleep 60 & echo $!; exit 0", 20, false);
  EXPECT_EQ(out.leftovers, 1);
  EXPECT_EQ(run("exit 0", 20, false).leftovers, 0);
  pid_t pid = static_cast<pid_t>(std::stol(out.output));
  int status = 0;
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(wait_for_child(pid, status, Deadline(10s)));
}

TEST_F(RunTest, WhatEndsByItselfIsNoLeftover) {
  TestOutcome out = run("sleep 0.05 & exit 0");
  EXPECT_EQ(out.leftovers, 0);
}

TEST_F(RunTest, StopsWhenTold) {
  stop_ = true;
  Deadline taken(60s);
  TestOutcome out = run("sleep 50", 40);
  EXPECT_TRUE(out.interrupted);
  EXPECT_LT(taken.elapsed(), 30s);
}

TEST(KernelLogTest, LinesThatATestExpectsAreContextReportsNever) {
  KernelLines lines;
  for (auto line : {"kz_accel: version magic is wrong", "pcieport: AER: error", "WARNING: CPU: 1 PID: 7 at kz_accel.c:10",
                    "BUG: KASAN in kz_accel"})
    lines.add(line, 4, {"kz_accel", "pcieport"}, {.words = {"kz_accel"}});
  EXPECT_EQ(lines.against, (std::vector<std::string>{"pcieport: AER: error", "WARNING: CPU: 1 PID: 7 at kz_accel.c:10",
                                                     "BUG: KASAN in kz_accel"}));
  EXPECT_EQ(lines.context, (std::vector<std::string>{"kz_accel: version magic is wrong"}));
}

TEST(KernelLogTest, ReportsThatATestExpectsAreKeptApart) {
  const std::string meant = "WARNING: CPU: 1 PID: 7 at fs/proc/generic.c:733 remove_proc_entry+0x13a/0x2ff",
                    other = "WARNING: CPU: 1 PID: 7 at mm/gup.c:10 try_grab_folio+0x1/0x2";
  KernelLines lines;
  for (auto& line : {meant, other, std::string("kz0: remove_proc_entry+ failed")})
    lines.add(line, 4, {"kz0"}, {.words = {}, .reports = {" remove_proc_entry+"}});
  EXPECT_EQ(lines.expected, std::vector<std::string>{meant});
  EXPECT_EQ(lines.against, (std::vector<std::string>{other, "kz0: remove_proc_entry+ failed"}));
  for (int i = 0; i < 300; ++i) lines.add(meant, 4, {}, {.words = {}, .reports = {" remove_proc_entry+"}});
  lines.add("BUG: KASAN in kz0", 4, {}, {.words = {"kz0"}, .reports = {" remove_proc_entry+"}});
  EXPECT_EQ(lines.against.back(), "BUG: KASAN in kz0") << "many that are meant hide one that is not";
}

TEST(KernelLogTest, OnlyLinesAboutTheDeviceOrTheKernelItselfCount) {
  std::vector<std::string> device = {"0000:01:00.0", "ast", "kz0", ""};
  for (const char* line :
       {"pcieport 0000:01:00.0: AER: Corrected error", "ast: probe failed", "misc kz0: reset",
        "BUG: kernel NULL pointer dereference", "WARNING: CPU: 1 PID: 7 at mm/gup.c:10", "Oops: 0002 [#1]",
        "INFO: task kworker blocked for more than 120 seconds", "WARNING: possible recursive locking detected",
        "WARNING: inconsistent lock state", "WARNING: suspicious RCU usage",
        "INFO: trying to register non-static key.", "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "WARNING: drivers/misc/x.c:10 at f+0x1/0x2 [x], CPU#3: t/7"})
    EXPECT_TRUE(counts_against(line, 4, device)) << line;
  for (const char* line : {"usb 1-1: last device found", "nvme 0000:02:00.0: timeout",
                           "nvme 10000:01:00.0: x", "kz01: other", "fast path", "eth0: link up", "WARNING: Unprivileged eBPF is enabled"})
    EXPECT_FALSE(counts_against(line, 4, device)) << line;
}

TEST(KernelLogTest, ReportsOfEveryCheckerCount) {
  for (const char* line :
       {"WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected", "WARNING: held lock freed!",
        "WARNING: kz/71 still has locks held!", "WARNING: lock held when returning to user space!",
        "WARNING: Nested lock was not taken", "WARNING: bad contention detected!",
        "divide error: 0000 [#1] PREEMPT SMP NOPTI", "invalid opcode: 0000 [#2] SMP", "stack segment: 0000 [#1] SMP",
        "irq 16: nobody cared (try booting with the \"irqpoll\" option)",
        "BUG kz_req (Tainted: G           OE     ): Poison overwritten",
        "BUG kz_req (Tainted: G    B      OE     ): Objects remaining in kz_req on __kmem_cache_shutdown()",
        "kmem_cache_destroy kz_req: Slab cache still has objects", "sysfs: cannot create duplicate filename '/class/kz/kz0'",
        "kobject_add_internal failed for kz0 with -EEXIST"})
    EXPECT_TRUE(counts_against(line, 6, {})) << line;
  for (const char* line : {"WARNING: polling idle and HT enabled, performance may degrade",
                           "WARNING: workqueue cpumask: online intersect > possible intersect", "fb0: mode [#x]",
                           "kobject_add_internal failed for 27 (error: -12 parent: irq)",
                           "traps: app[7] trap invalid opcode ip:1 sp:2 error:0", "debugging BUG reports is on"})
    EXPECT_FALSE(counts_against(line, 4, {})) << line;
}

TEST(KernelLogTest, WhatADriverSaysInPassingIsNoTrouble) {
  const std::vector<std::string> device = {"0000:01:00.0", "0000:00:1c.0"};
  // include/linux/kern_levels.h: 3 error, 4 warning, 5 notice, 6 info
  for (const char* line : {"kz_accel 0000:01:00.0: function reset: asked for by a user", "nvme 0000:01:00.0: enabling device"}) {
    EXPECT_TRUE(counts_against(line, 3, device)) << line;
    EXPECT_TRUE(counts_against(line, 4, device)) << line;
    EXPECT_FALSE(counts_against(line, 5, device)) << line;
    EXPECT_FALSE(counts_against(line, 6, device)) << line;
  }
  // pciehp and AER tell these at level info
  for (const char* line : {"pcieport 0000:00:1c.0: pciehp: Slot(1): Link Down", "pcieport 0000:00:1c.0: pciehp: Slot(1): Card not present",
                           "pcieport 0000:00:1c.0: AER: Corrected error message received from 0000:01:00.0",
                           "BUG: unable to handle page fault for address: ffff"})
    EXPECT_TRUE(counts_against(line, 6, device)) << line;
}

TEST(KernelLogTest, KnowsThePortsAboveAFunction) {
  std::string sys = ::testing::TempDir() + "kz-ports-" + std::to_string(::getpid());
  std::string device = sys + "/devices/pci0000:00/0000:00:1c.0/0000:01:00.0/0000:02:00.0";
  fs::create_directories(device);
  fs::create_directories(sys + "/bus/pci/devices");
  fs::create_directory_symlink(device, sys + "/bus/pci/devices/0000:02:00.0");
  EXPECT_THAT(ports_above("0000:02:00.0", sys), ::testing::ElementsAre("0000:00:1c.0", "0000:01:00.0"));
  EXPECT_THAT(ports_above("0000:03:00.0", sys), IsEmpty());
  EXPECT_THAT(ports_above("", sys), IsEmpty());
  fs::remove_all(sys);
}

TEST(KernelLogTest, SaysWhyItCannotBeRead) {
  KernelLog log({}, "/nonexistent/kmsg");
  EXPECT_THAT(log.unreadable(), HasSubstr("/nonexistent/kmsg"));
  EXPECT_TRUE(log.take().against.empty());
}

TEST(KernelLogTest, BeginsAtItsEnd) {
  std::string path = ::testing::TempDir() + "kz-kmsg-" + std::to_string(::getpid());
  std::ofstream(path) << "6,1,100,-;pci 0000:01:00.0: old\n";
  KernelLog log({"0000:01:00.0"}, path);
  EXPECT_TRUE(log.unreadable().empty());
  EXPECT_TRUE(log.take().against.empty());
  std::ofstream(path, std::ios::app) << "4,2,200,-;pci 0000:01:00.0: new\n";
  EXPECT_THAT(log.take().against, ::testing::ElementsAre("pci 0000:01:00.0: new"));
  std::ofstream(path, std::ios::app) << "6,3,300,-;usb 1-1: else\n";
  KernelLines lines = log.take();
  EXPECT_TRUE(lines.against.empty());
  EXPECT_THAT(lines.context, ::testing::ElementsAre("usb 1-1: else"));
  fs::remove(path);
}

}  // namespace
}  // namespace kz
