// SPDX-License-Identifier: GPL-2.0-or-later
// How a device test is declared and what it sees. A test looks like this:
//
//   KZ_TEST(dma, host_to_hbm_and_back,
//           {.meaning = "bytes survive host -> HBM -> host at awkward sizes", .level = 2, .needs =
//           {Cap::dma}}) {
//     auto ctx = device().create_context();
//     auto queue = open_queue(*ctx);
//     ...
//     EXPECT_EQ(...);
//   }
//
// Its id is "dma.host_to_hbm_and_back"; the first '_' of a suite name becomes a '.', so suite pcie_link, test
// retrain_under_load is "pcie.link.retrain_under_load". A test fails through gtest's EXPECT/ASSERT or by a
// thrown kz::Error, and hands over what it saw with evidence(). It never looks at which backend it runs on.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "shim/base/error.h"
#include "shim/device.h"
#include "tests/harness/queue_guard.h"
#include "tools/journal/evidence.h"

namespace kz::test {

struct TestInfo {
  const char* meaning = "";
  int level = 0;  // 1..4, see README.md
  // "destructive", "root", "long", "host" (needs no device), "kernel" (about the driver itself: the harness
  // leaves the device closed, the test opens what it needs; not in a run unless asked for by name, group or
  // label)
  std::vector<std::string> labels = {};
  std::vector<Cap> needs = {};     // a missing one: skip (or blocked, where the host is to blame)
  std::chrono::seconds limit{20};  // the runner ends the test after this, times scale() where `scaled`
  bool scaled = false;             // runs as long as scale() says
  std::vector<std::string> profiles = {"quick", "full", "night"};
};

// Registers the declaration; called by KZ_TEST before main.
bool declare(const char* suite, const char* test, TestInfo info);

class DeviceTest : public ::testing::Test {
 public:
  DeviceTest();
  ~DeviceTest() override;

 protected:
  void SetUp() override;     // opens the device, checks needs, takes the snapshot before
  void TestBody() override;  // runs body() and turns what it throws into a verdict
  void TearDown() override;  // snapshot after, judged; audits of the queues
  virtual void body() {}     // what KZ_TEST defines

  Device& device();
  const Capabilities& caps();
  // Every random choice of a test comes from here; the seed is in the journal and in the rerun line.
  std::mt19937_64& rng();
  uint64_t seed() const;
  // seconds of load, scaled by the profile: quick 1, full 4, night 60
  double scale() const;

  // This test resets the device on purpose: a changed reset count is not held against it, it checks that
  // itself.
  void expect_reset();
  // This test plants ECC errors on purpose or judges the counters itself.
  void expect_ecc();
  // This test leaves less free HBM behind on purpose (pages it made the device retire).
  void expect_hbm_use();
  // Gives the device up and takes it again, for tests in which somebody else uses it meanwhile. Counts as
  // expect_reset(); needs a lasting device.
  void close_device();
  void reopen_device();
  // Skips where the device would not outlive its client, or where everybody gets one of his own (a private
  // softtpu).
  void need_lasting_device();
  const std::string& device_uri() const;

 private:
  struct State;
  void bring_up();
  void judge();
  void on_error(const Error& error);
  std::unique_ptr<State> state_;
};

// One fact into the journal (see evidence.h for kinds and details).
void evidence(std::string_view kind, const nlohmann::json& detail);
// A number worth keeping: latency, bandwidth, slope. Shown in the report and by compare.
void metric(std::string_view name, double value, std::string_view unit);
// Journals what is about to happen and returns only when that is on disk. Call it before every step that may
// take the device or the machine down.
void before_danger(std::string_view step);
// Ends the test with verdict blocked or skip and a reason (throws).
[[noreturn]] void block(const std::string& reason);
[[noreturn]] void skip(const std::string& reason);
// The kernel will name the device or its driver in lines that hold this text, and that is meant. Reports of
// the kernel about itself (BUG, WARNING ...) count all the same. `taint`: bits of /proc/sys/kernel/tainted
// that a module's mere presence sets (proprietary, out of tree, unsigned).
void expect_log(const std::string& text, unsigned long taint = 0);
// The kernel will report of itself in lines that hold this text (WARNING, BUG), and that is its own doing:
// say, code of its own that does not stand an injected failure. Name it as narrowly as can be.
void expect_report(const std::string& text);
// Keeps the verdict at warn, if nothing fails: data was right, but something is dirty.
void warn(const std::string& reason);

}  // namespace kz::test

#define KZ_TEST(suite, name, ...)                                                                     \
  static const bool suite##_##name##_declared [[maybe_unused]] =                                      \
      ::kz::test::declare(#suite, #name, ::kz::test::TestInfo __VA_ARGS__);                           \
  class suite##_##name##_Test : public ::kz::test::DeviceTest {                                       \
   protected:                                                                                         \
    void body() override;                                                                             \
  };                                                                                                  \
  static ::testing::TestInfo* const suite##_##name##_info [[maybe_unused]] =                          \
      ::testing::RegisterTest(#suite, #name, nullptr, nullptr, __FILE__, __LINE__,                    \
                              []() -> ::kz::test::DeviceTest* { return new suite##_##name##_Test; }); \
  void suite##_##name##_Test::body()
