// SPDX-License-Identifier: GPL-2.0-or-later
// What the difference of two snapshots may be called.
#include <gtest/gtest.h>

#include <functional>

#include "shim/uapi/kz_telemetry.h"
#include "tests/harness/session.h"
#include "tests/harness/snapshot.h"
#include "tools/journal/evidence.h"

namespace kz::test {
namespace {

Snapshot healthy() {
  Snapshot s;
  s.telemetry.core_celsius = 45;
  s.telemetry.critical_celsius = 105;
  s.telemetry.power_watts = 80;
  s.telemetry.power_cap_watts = 350;
  s.telemetry.clock_mhz = s.telemetry.clock_max_mhz = 1500;
  s.telemetry.fan_rpm = 1500;
  s.telemetry.throttle = 0;
  s.telemetry.reset_count = 3;
  s.telemetry.reset_reason = 1;
  s.telemetry.hbm_free = 1 << 30;
  s.telemetry.contexts = 0;
  s.telemetry.pages_retired = 0;
  s.telemetry.ecc_ce = {0, 0};
  s.telemetry.ecc_ue = {0, 0};
  s.fds = 10;
  s.link = PciLink{32, 16};
  s.aer_bits = AerBits{};
  return s;
}

std::vector<Finding> after(const std::function<void(Snapshot&)>& change, Expected expected = {}) {
  Snapshot a = healthy();
  change(a);
  Limits limits;
  limits.hbm_page = 65536;
  return judge_difference(healthy(), a, limits, expected, "suite.test");
}

void expect_one(const std::vector<Finding>& found, bool fails, std::string_view kind) {
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].fails, fails);
  EXPECT_EQ(found[0].kind, kind);
}

TEST(HarnessSnapshot, NothingChanged) {
  EXPECT_TRUE(after([](Snapshot&) {}).empty());
}

TEST(HarnessSnapshot, Memory) {
  auto leak = [](Snapshot& s) { s.telemetry.hbm_free = *s.telemetry.hbm_free - 65536; };
  expect_one(after(leak), true, ev::hbm_leak);
  EXPECT_TRUE(after(leak, {.hbm = true}).empty());
  // A page that was retired is not a leak.
  EXPECT_TRUE(after([&](Snapshot& s) {
                leak(s);
                s.telemetry.pages_retired = 1;
              }).empty());
  expect_one(after([](Snapshot& s) { s.telemetry.contexts = 1; }), true, ev::hbm_leak);
}

TEST(HarnessSnapshot, Ecc) {
  expect_one(after([](Snapshot& s) { s.telemetry.ecc_ce[1] = 4; }), false, ev::ecc);
  expect_one(after([](Snapshot& s) { s.telemetry.ecc_ue[0] = 1; }), true, ev::ecc);
  EXPECT_TRUE(after([](Snapshot& s) { s.telemetry.ecc_ue[0] = 1; }, {.ecc = true}).empty());
}

TEST(HarnessSnapshot, Resets) {
  auto reset = [](Snapshot& s) { s.telemetry.reset_count = 4; };
  expect_one(after(reset), true, ev::spontaneous_reset);
  EXPECT_TRUE(after(reset, {.reset = true}).empty());
}

TEST(HarnessSnapshot, HeatAndPower) {
  expect_one(after([](Snapshot& s) { s.telemetry.core_celsius = 106; }), true, ev::limits);
  expect_one(after([](Snapshot& s) { s.telemetry.power_watts = 368; }), true, ev::limits);
  expect_one(after([](Snapshot& s) { s.telemetry.fan_rpm = 0; }), true, ev::limits);
  expect_one(after([](Snapshot& s) { s.telemetry.throttle = KZ_THROTTLE_THERMAL; }), false, ev::limits);
  expect_one(after([](Snapshot& s) { s.telemetry.throttle = KZ_THROTTLE_BROWNOUT; }), true, ev::limits);
}

TEST(HarnessSnapshot, AllOnesIsNoMeasurement) {
  // A block of ones must not be read as heat, resets or errors.
  const auto found = after([](Snapshot& s) {
    s.telemetry = {};
    s.telemetry.all_ones = true;
  });
  expect_one(found, true, ev::telemetry);
}

TEST(HarnessSnapshot, OwnDescriptors) {
  expect_one(after([](Snapshot& s) { s.fds = 11; }), false, ev::host_access);
  EXPECT_TRUE(after([](Snapshot& s) { s.fds = 9; }).empty());
  expect_one(after([](Snapshot& s) { s.pinned_kib = 4; }), false, ev::host_access);
}

TEST(HarnessSnapshot, Link) {
  expect_one(after([](Snapshot& s) { s.link->width = 8; }), true, ev::link);
  expect_one(after([](Snapshot& s) { s.link->gts = 16; }), false, ev::link);
  EXPECT_TRUE(after([](Snapshot& s) { s.link.reset(); }).empty());
  // Saving power.
  EXPECT_TRUE(after([](Snapshot& s) {
                s.link->gts = 16;
                s.class_code = 0x030000;
              }).empty());
}

TEST(HarnessSnapshot, AdvancedErrors) {
  expect_one(after([](Snapshot& s) { s.aer_bits->correctable = 1; }), false, ev::aer);
  expect_one(after([](Snapshot& s) { s.aer_bits->nonfatal = 0x4000; }), false, ev::aer);
  expect_one(after([](Snapshot& s) { s.aer_bits->fatal = 0x10; }), true, ev::aer);
  // Counted by the kernel and still in the register: one error.
  const auto found = after([](Snapshot& s) {
    s.aer_bits->fatal = 0x10;
    s.aer_totals.fatal = 1;
  });
  expect_one(found, true, ev::aer);
  EXPECT_EQ(found[0].detail["count"], 1);
}

TEST(HarnessPacket, LongTextIsCutToFit) {
  const std::string text =
      fit_packet({{"type", "evidence"}, {"detail", {{"a", std::string(200000, 'x')}, {"b", "kept"}}}});
  EXPECT_LE(text.size(), kMaxPacket);
  const auto back = nlohmann::json::parse(text);
  EXPECT_EQ(back["detail"]["b"], "kept");
  EXPECT_TRUE(back["detail"]["a"].get<std::string>().ends_with("…(cut)"));
}

TEST(HarnessPacket, CutsBetweenCharacters) {
  std::string umlauts;
  for (int i = 0; i < 60000; ++i) umlauts += "ü";
  EXPECT_TRUE(nlohmann::json::accept(fit_packet({{"text", umlauts}})));
}

TEST(HarnessPacket, ManyItemsAndBadUtf8Fit) {
  nlohmann::json many = nlohmann::json::array();
  for (int i = 0; i < 50000; ++i) many.push_back(i);
  EXPECT_LE(fit_packet({{"type", "evidence"}, {"detail", many}}).size(), kMaxPacket);
  EXPECT_TRUE(nlohmann::json::accept(fit_packet({{"text", "\xff\xfe broken"}})));
}

}  // namespace
}  // namespace kz::test
