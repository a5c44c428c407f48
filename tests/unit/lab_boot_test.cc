// SPDX-License-Identifier: GPL-2.0-or-later
// What a lab boot left on the host, and what is made of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/journal/reader.h"
#include "tools/lab/boot_verdicts.h"
#include "tools/lab/boot_watch.h"
#include "tools/lab/driver_build.h"
#include "tools/lab/lab.h"

namespace kz::lab {
namespace {
namespace fs = std::filesystem;
using How = BootEnd::How;
using ::testing::HasSubstr;

class LabBootTest : public ::testing::Test {
 protected:
  LabBootTest() { fs::create_directories(boot()); }
  ~LabBootTest() override { fs::remove_all(base_); }
  std::string boot() const { return base_ + "/boot-1"; }
  std::string run_folder() const { return base_ + "/run"; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((fs::path(base_) / name).parent_path());
    std::ofstream(base_ + "/" + name) << text;
  }
  // A record a word: "run-start test-start:dma.copy".
  GuestRun guest_journal(const std::string& words) const {
    std::istringstream in(words);
    std::string text;
    for (std::string word; in >> word;) {
      auto colon = word.find(':');
      text += R"({"type":")" + word.substr(0, colon) + "\"";
      if (colon != std::string::npos) text += R"(,"id":")" + word.substr(colon + 1) + "\"";
      text += "}\n";
    }
    write("run/journal.jsonl", text);
    return read_guest_run(run_folder());
  }
  // The verdict of a step; not-run: it got none.
  StepVerdict judged(const std::string& step, const BootEnd& end, const GuestRun& run = {}) const {
    StepVerdict found{step, Verdict::not_run};
    for (auto& v : judge_steps(boot(), end, run))
      if (v.step == step) found = v;
    return found;
  }
  std::string base_ = ::testing::TempDir() + "kz-lab-boot-" + std::to_string(::getpid());
};

const std::string booted = "begin boot 0\nend boot 0 2.1\nbegin load 2.1\nend load 0 2.5\n";
const BootEnd panic{How::died, "the guest died: Kernel panic"};
const BootEnd late{How::late, "no sign of life for 90 s"};

TEST_F(LabBootTest, OrderlyBootPassesEveryStep) {
  write("boot-1/state", booted + "begin unload 3\nend unload 0 3.5\nbegin poweroff 3.5\n");
  for (auto& v : judge_steps(boot(), {How::off}, {})) EXPECT_EQ(v.verdict, Verdict::pass) << v.step;
  EXPECT_EQ(judged("poweroff", {How::off}).verdict, Verdict::pass);
  EXPECT_DOUBLE_EQ(judged("unload", {How::off}).seconds, 0.5);
}

TEST_F(LabBootTest, BootThatBreaksBetweenTestsFailsTheRun) {
  write("boot-1/state", booted + "begin run 3\n");
  auto between = guest_journal("run-start test-start:a.b verdict:a.b");
  EXPECT_EQ(judged("run", panic, between).verdict, Verdict::crash);
  EXPECT_EQ(judged("run", late, between).verdict, Verdict::timeout);
  EXPECT_THAT(judged("run", panic, between).reason, HasSubstr("Kernel panic"));
}

TEST_F(LabBootTest, BootThatBreaksInATestIsThatTestsMatter) {
  write("boot-1/state", booted + "begin run 3\n");
  auto run = guest_journal("run-start test-start:a.b verdict:a.b test-start:a.c");
  EXPECT_EQ(judged("run", panic, run).verdict, Verdict::not_run);
  EXPECT_EQ(broken_test(read_steps(boot()), panic, run), "a.c");
}

TEST_F(LabBootTest, TestOfAnEarlierBootDoesNotTakeTheBlame) {
  write("boot-1/state", "begin boot 0\nend boot 0 2.1\nbegin load 2.1\n");
  auto run = guest_journal("run-start test-start:a.c");
  EXPECT_EQ(broken_test(read_steps(boot()), panic, run), "");
  EXPECT_EQ(judged("load", panic, run).verdict, Verdict::crash);
}

TEST_F(LabBootTest, BootThatBreaksBetweenStepsFailsThePowerOff) {
  write("boot-1/state", booted);
  EXPECT_EQ(judged("poweroff", panic).verdict, Verdict::crash);
  EXPECT_THAT(judged("poweroff", panic).reason, HasSubstr("after load"));
  EXPECT_EQ(judged("load", panic).verdict, Verdict::pass);
}

TEST_F(LabBootTest, BootThatHangsInThePowerOffFailsIt) {
  write("boot-1/state", booted + "begin poweroff 3.5\n");
  EXPECT_EQ(judged("poweroff", late).verdict, Verdict::timeout);
}

TEST_F(LabBootTest, BootWithoutAStateFailsTheBoot) {
  EXPECT_EQ(judged("boot", panic).verdict, Verdict::crash);
  EXPECT_EQ(judged("boot", {How::off}).verdict, Verdict::crash);
}

TEST_F(LabBootTest, PowerOffThatNobodyAskedForFails) {
  write("boot-1/state", booted);
  EXPECT_EQ(judged("poweroff", {How::off}).verdict, Verdict::fail);
  write("boot-1/state", booted + "begin unload 3\n");
  EXPECT_EQ(judged("unload", {How::off}).verdict, Verdict::crash);
}

TEST_F(LabBootTest, ExitStatusOfTheRunIsJudged) {
  auto ended = guest_journal("run-start test-start:a.b verdict:a.b run-end");
  auto torn = guest_journal("run-start test-start:a.b verdict:a.b");
  auto verdict = [&](int status, const GuestRun& run) {
    write("boot-1/state",
          booted + "begin run 3\nend run " + std::to_string(status) + " 9\nbegin poweroff 9\n");
    return judged("run", {How::off}, run).verdict;
  };
  for (int status : {0, 1, 3, 125}) EXPECT_EQ(verdict(status, ended), Verdict::pass) << status;
  for (int status : {2, 4, 126, 130, 137, 139}) EXPECT_EQ(verdict(status, ended), Verdict::fail) << status;
  EXPECT_EQ(verdict(1, torn), Verdict::fail);
  EXPECT_EQ(verdict(125, torn), Verdict::blocked);
}

TEST_F(LabBootTest, OnlyARunThatBeganIsGoneOnWith) {
  EXPECT_FALSE(take_up_run(base_, "boot-2")) << "there is none yet";
  guest_journal("run-start test-start:a.b");
  EXPECT_TRUE(take_up_run(base_, "boot-2"));
  EXPECT_TRUE(fs::exists(run_folder() + "/journal.jsonl"));
  for (std::string content : {"", "torn", "{\"type\":\"note\"}\n"}) {
    write("run/journal.jsonl", content);
    write("run/other", content);
    EXPECT_FALSE(take_up_run(base_, "boot-2")) << content;
    EXPECT_FALSE(fs::exists(run_folder())) << "kangzao run wants a new folder";
    EXPECT_TRUE(fs::exists(base_ + "/run-before-boot-2/other")) << "what it left is kept";
  }
}

TEST_F(LabBootTest, TestOfAnInterruptedBootRunsAgain) {
  mark_interrupted(run_folder());
  EXPECT_FALSE(fs::exists(run_folder() + "/journal.jsonl"));
  EXPECT_EQ(guest_journal("run-start test-start:a.b").test, "a.b");
  std::ofstream(run_folder() + "/journal.jsonl", std::ios::app) << "{\"type\":\"evid";  // torn
  mark_interrupted(run_folder());
  EXPECT_EQ(read_guest_run(run_folder()).test, "");
  EXPECT_EQ(text_of(read_journal(run_folder()).records.back(), "id"), "a.b");
  auto size = fs::file_size(run_folder() + "/journal.jsonl");
  mark_interrupted(run_folder());
  EXPECT_EQ(fs::file_size(run_folder() + "/journal.jsonl"), size) << "once is enough";
}

TEST_F(LabBootTest, InterruptedBootIsNotJudged) {
  write("boot-1/state", booted + "begin run 3\n");
  EXPECT_EQ(judged("run", {How::interrupted}).verdict, Verdict::not_run);
}

TEST_F(LabBootTest, GuestWithoutAShareIsBlocked) {
  write("boot-1/serial.log", "lab: kernel 6.1\r\nlab: no share: this kernel has no 9p\r\n");
  EXPECT_EQ(judged("boot", {How::off}).verdict, Verdict::blocked);
  EXPECT_EQ(judged("boot", {How::off}).reason, "no share: this kernel has no 9p");
}

TEST_F(LabBootTest, KernelLogThatWasReadToItsEndHasNoGap) {
  write("boot-1/state", booted + "begin poweroff 3\n");
  write("boot-1/kernel.log", "6,0,0,-;Linux version 6.1\n6,1,9,-;lab: end of boot-1\n");
  EXPECT_EQ(log_gap(boot()), "");
}

TEST_F(LabBootTest, KernelLogThatWasNotReadIsNoCleanOne) {
  write("boot-1/state", booted + "begin poweroff 3\n");
  EXPECT_THAT(log_gap(boot()), HasSubstr("not read to its end")) << "there is none";
  write("boot-1/kernel.log", "6,0,0,-;Linux version 6.1\n");
  EXPECT_THAT(log_gap(boot()), HasSubstr("not read to its end"));
  write("boot-1/kernel.log", "6,0,0,-;Linux\nlost 17\n6,18,9,-;x\nlost 3\n6,22,9,-;lab: end of boot-1\n");
  EXPECT_THAT(log_gap(boot()), HasSubstr("20 records"));
}

TEST_F(LabBootTest, BootThatBrokeOwesNoLastWord) {
  write("boot-1/state", booted);
  write("boot-1/kernel.log", "6,0,0,-;Linux version 6.1\n");
  EXPECT_EQ(log_gap(boot()), "");
}

TEST_F(LabBootTest, ReportsAreFoundInBothLogs) {
  write("boot-1/kernel.log",
        "6,1,0,-;fine\n4,2,9,-,caller=T7;WARNING: held lock freed!\n SUBSYSTEM=pci; BUG: no record\n");
  write("boot-1/serial.log",
        "[    5.140900] irq 16: nobody cared (try booting with the \"irqpoll\" option)\r\n"
        "divide error: 0000 [#1] PREEMPT SMP\r\n[    6.1][   T12] BUG kz_req (Not tainted): Objects "
        "remaining\r\n"
        "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x1000\r\nlab: kernel 6.1\r\n");
  EXPECT_THAT(kernel_reports(boot()),
              ::testing::ElementsAre("WARNING: held lock freed!", HasSubstr("nobody cared"),
                                     HasSubstr("divide error"), HasSubstr("BUG kz_req"),
                                     HasSubstr("DMAR: [DMA Read")));
}

TEST_F(LabBootTest, ReportsThatATestExpectsAreLeftOut) {
  write("boot-1/kernel.log", "4,1,0,-;WARNING: held lock freed!\n");
  write("boot-1/state", "taint before 0\n" + booted + "taint after 512\n");
  EXPECT_EQ(kernel_reports(boot()).size(), 2U);
  EXPECT_THAT(kernel_reports(boot(), {"WARNING: held lock freed!"}), ::testing::IsEmpty());
  write("boot-1/state", "taint before 0\n" + booted + "taint after 640\n");
  EXPECT_THAT(kernel_reports(boot(), {"WARNING: held lock freed!"}),
              ::testing::ElementsAre(HasSubstr("D (it died)")));
}

TEST_F(LabBootTest, LogSinceAStepLeavesOutWhatWasBefore) {
  write("boot-1/kernel.log",
        "6,0,0,-;old: probe failed\n6,1,1,-;lab: begin load\n4,2,9,-;kz: x\n SUBSYSTEM=pci\n6,3,9,-;kz: y\n");
  EXPECT_EQ(log_since(boot(), "load"), "lab: begin load\nkz: x\nkz: y\n");
  EXPECT_THAT(log_since(boot(), "unload"), HasSubstr("old: probe failed")) << "without its mark all of it";
}

TEST_F(LabBootTest, FlagsThatNewerKernelsIgnoreAreFound) {
  write("driver/Makefile", "obj-m := x.o\nEXTRA_CFLAGS += -I$(src)/inc\nccflags-y := -DX\n");
  EXPECT_EQ(extra_flags(base_ + "/driver"), "Makefile: EXTRA_CFLAGS += -I$(src)/inc\n");
  EXPECT_EQ(extra_flags(base_ + "/nowhere"), "");
}

TEST_F(LabBootTest, TaintOfTroubleIsAReport) {
  auto tainted = [&](unsigned before, unsigned after) {
    write("boot-1/state", "taint before " + std::to_string(before) + "\n" + booted + "taint after " +
                              std::to_string(after) + "\n");
    return kernel_reports(boot());
  };
  EXPECT_THAT(tainted(0, 1 << 12 | 1 << 13), ::testing::IsEmpty()) << "O and E: a module of ours";
  EXPECT_THAT(tainted(1 << 9, 1 << 9 | 1 << 12), ::testing::IsEmpty()) << "it warned before the driver came";
  EXPECT_THAT(tainted(0, 1 << 9 | 1 << 12), ::testing::ElementsAre(HasSubstr("W (warning)")));
  EXPECT_THAT(tainted(0, 1 << 7 | 1 << 5), ::testing::ElementsAre(HasSubstr("B (bad page), D (it died)")));
  EXPECT_THAT(tainted(0, 1 << 14), ::testing::ElementsAre(HasSubstr("L (soft lockup)")));
  EXPECT_EQ(read_steps(boot()).size(), 2U);
}

// A bzImage as far as the lab looks: Linux, Documentation/arch/x86/boot.rst.
std::string image_of(const std::string& release, const std::string& more) {
  std::string image(0x400, '\0');
  image.replace(0x202, 4, "HdrS")
      .replace(0x20e, 2, std::string("\x80\0", 2))
      .replace(0x280, release.size(), release);
  return image + more;
}

TEST_F(LabBootTest, BuildsAreKeptApartByKernel) {
  write("driver/Makefile", "obj-m := x.o\n");
  auto place = [&](const std::string& tree, const std::string& image, const std::string& config,
                   const std::string& symbols) {
    write(tree + "/bzImage", image_of("6.1.0-mine ", image));
    for (auto name : {"/Makefile", "/Module.symvers", "/.config"}) write(tree + name, "");
    write(tree + "/.config", config);
    write(tree + "/Module.symvers", symbols);
    return place_of_build(given_kernel(base_ + "/" + tree + "/bzImage", base_ + "/" + tree),
                          base_ + "/driver");
  };
  auto first = place("tree", "one", "CONFIG_SMP=y", "0x1 printk");
  EXPECT_THAT(first, HasSubstr("6.1.0-mine-"));
  EXPECT_EQ(place("tree", "one", "CONFIG_SMP=y", "0x1 printk"), first);
  EXPECT_NE(place("tree", "two", "CONFIG_SMP=y", "0x1 printk"), first) << "another image";
  EXPECT_NE(place("tree", "one", "CONFIG_SMP=n", "0x1 printk"), first) << "another configuration";
  EXPECT_NE(place("tree", "one", "CONFIG_SMP=y", "0x2 printk"), first) << "other symbols";
  EXPECT_NE(place("other", "one", "CONFIG_SMP=y", "0x1 printk"), first) << "another tree";
  EXPECT_EQ(place("tree", "one", "CONFIG_SMP=y", "0x1 printk"), first);
  auto words = [&](const std::vector<std::string>& w) {
    return place_of_build(given_kernel(base_ + "/tree/bzImage", base_ + "/tree"), base_ + "/driver", w);
  };
  EXPECT_NE(words({"KZ_BUGS=1"}), first) << "another driver";
  EXPECT_NE(words({"KZ_BUGS=1", "KZ_PLANT=K01"}), words({"KZ_BUGS=1", "KZ_PLANT=K02"}));
}

// A kernel's build tree whose Makefile shows what it was told.
TEST_F(LabBootTest, MakeGetsTheWordsThatWereGiven) {
  write("tree/bzImage", image_of("6.1.0-words ", std::to_string(::getpid())));
  write("tree/Makefile", "modules:\n\techo '$(DEBUG) $(TEXT)' >$(M)/x.ko\n");
  for (auto name : {"tree/Module.symvers", "tree/.config"}) write(name, "");
  write("driver/Makefile", "obj-m := x.o\n");
  auto kernel = given_kernel(base_ + "/tree/bzImage", base_ + "/tree");
  std::vector<std::string> words{"DEBUG=7", "TEXT=two words"};
  BuiltDriver built = build_driver(kernel, base_ + "/driver", words);
  ASSERT_NE(built.module, "") << built.log;
  EXPECT_EQ(content_of(built.module), "7 two words\n");
  std::filesystem::remove_all(place_of_build(kernel, base_ + "/driver", words));
}

TEST_F(LabBootTest, RunGoesOnWithTheSamePartsOnly) {
  using nlohmann::json;
  json before = {{"driver", "d1"},
                 {"kernels", {{{"name", "sid"}, {"release", "7.2"}, {"image", "/k"}, {"hash", "h1"}}}}};
  EXPECT_EQ(other_parts(before, before), "");
  EXPECT_EQ(other_parts(json::object(), before), "") << "a run that did not say";
  for (auto [key, value] : {std::pair{"release", "7.3"}, {"image", "/l"}, {"hash", "h2"}}) {
    json now = before;
    now["kernels"][0][key] = value;
    EXPECT_THAT(other_parts(before, now), HasSubstr("kernel sid was 7.2")) << key;
  }
  json now = before;
  now["driver"] = "d2";
  EXPECT_THAT(other_parts(before, now), HasSubstr("driver"));
  before["make"] = json::array();
  now = before;
  now["make"] = {"DEBUG=1"};
  EXPECT_THAT(other_parts(before, now), HasSubstr("driver"));
  write("x.ko", "one");
  auto first = driver_hash(base_ + "/x.ko");
  write("x.ko", "two");
  EXPECT_NE(driver_hash(base_ + "/x.ko"), first);
}

TEST_F(LabBootTest, RerunLineHasAllThatMadeTheRun) {
  LabOptions o;
  Kernel sid{.name = "sid"}, given{.name = "given"};
  o.run.selection.profile = "quick";
  o.run.seed = 7;
  EXPECT_EQ(rerun_line(o, sid, "dma.copy"),
            "kangzao lab --kernels 'sid' --profile 'quick' --filter 'dma.copy' --seed 7");
  EXPECT_EQ(rerun_line(o, sid, ""), "kangzao lab --kernels 'sid' --profile 'none'");
  o.kernel = "/it's/bzImage";
  o.device = "dev:/dev/kz1";
  o.vfio = "0000:01:00.0";
  o.load = "/a.load";
  o.load_s = 5;
  o.make = {"DEBUG=1", "V=1"};
  o.limit_s = 99;
  o.run.destructive = true;
  std::string line = rerun_line(o, given, "");
  for (auto part :
       {"--kernel '/it'\\''s/bzImage'", "--device 'dev:/dev/kz1'", "--vfio '0000:01:00.0'",
        "--load '/a.load'", "--load-time 5", "--limit 99", "--destructive", "--make 'DEBUG=1,V=1'"})
    EXPECT_THAT(line, HasSubstr(part));
  EXPECT_EQ(line.find("--i-know"), std::string::npos);
  EXPECT_EQ(LabOptions::from_json(o.to_json()).make, o.make);
}

class BootWatchTest : public ::testing::Test {
 protected:
  // Steps "boot", "load", ...: all ended, but for the last one where it has a "*".
  std::string late(const std::string& words, double now_s, const std::string& alive = "") {
    std::istringstream in(words);
    std::vector<Step> reached;
    for (std::string word; in >> word;) {
      bool open = word.ends_with("*");
      reached.push_back({.name = open ? word.substr(0, word.size() - 1) : word, .end = open ? -1.0 : 1.0});
    }
    auto at = start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(now_s));
    return watch_.late(reached, alive.empty() ? std::to_string(now_s) : alive, at);
  }
  Clock::time_point start_ = Clock::now();
  BootWatch watch_{
      [](const std::string& step) { return step == "run" ? 1000.0 : 60.0; }, {"load", "run"}, start_};
};

TEST_F(BootWatchTest, UserSpaceHasALimit) {
  EXPECT_EQ(late("", 119), "");
  EXPECT_THAT(late("", 121), HasSubstr("no user space"));
}

TEST_F(BootWatchTest, OpenStepHasALimit) {
  EXPECT_EQ(late("boot load*", 10), "");
  EXPECT_EQ(late("boot load*", 69), "");
  EXPECT_THAT(late("boot load*", 71), HasSubstr("load had no end within 60 s"));
}

TEST_F(BootWatchTest, TimeBetweenStepsHasALimit) {
  EXPECT_EQ(late("boot load*", 10), "");
  EXPECT_EQ(late("boot load", 50), "");
  EXPECT_EQ(late("boot load", 109), "");
  EXPECT_THAT(late("boot load", 111), HasSubstr("of the end of load"));
}

TEST_F(BootWatchTest, PowerOffHasALimit) {
  EXPECT_EQ(late("boot load poweroff*", 10), "");
  EXPECT_THAT(late("boot load poweroff*", 71), HasSubstr("poweroff had no end"));
}

TEST_F(BootWatchTest, SilenceHasALimit) {
  EXPECT_EQ(late("boot run*", 10, "5"), "");
  EXPECT_EQ(late("boot run*", 99, "5"), "");
  EXPECT_THAT(late("boot run*", 101, "5"), HasSubstr("no sign of life"));
}

TEST_F(BootWatchTest, TheWholeBootHasALimit) {
  std::string words = "boot";
  double now = 0;
  for (; now < 1300; now += 50) EXPECT_EQ(late(words += " load", now), "") << now;
  EXPECT_THAT(late(words + " load", 1301), HasSubstr("the boot had no end within 1300 s"));
}

}  // namespace
}  // namespace kz::lab
