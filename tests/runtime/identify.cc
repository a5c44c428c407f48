// SPDX-License-Identifier: GPL-2.0-or-later
// Is it the device it says it is, and is it alive: registers, telemetry, firmware, clock, one interrupt.
#include <fmt/format.h>

#include <bit>
#include <thread>

#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"
#include "tests/harness/diagnose.h"
#include "shim/base/host_load.h"
#include "tests/harness/snapshot.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

void implausible(const char* field, double value, const std::string& why) {
  evidence(ev::telemetry, {{"what", "implausible"}, {"field", field}, {"value", value}});
  ADD_FAILURE() << field << " is " << value << ": " << why;
}

void in_range(const char* field, const std::optional<double>& value, double low, double high) {
  if (value && !(*value >= low && *value <= high))
    implausible(field, *value, fmt::format("not in {} .. {}", low, high));
}

}  // namespace

KZ_TEST(identify, registers,
        {.meaning = "magic, ABI version, queue count and sizes are those of a reference TPU",
         .level = 1,
         .needs = {Cap::registers}}) {
  auto read = [&](uint32_t reg) { return device().read_register(reg); };
  EXPECT_EQ(read(KZ_REG_MAGIC), KZ_MAGIC);
  EXPECT_EQ(read(KZ_REG_ABI) >> 16, unsigned{KZ_ABI_MAJOR});
  const uint32_t cap = read(KZ_REG_CAP);
  EXPECT_GE(KZ_CAP_QUEUES(cap), 8u);
  EXPECT_GE(KZ_CAP_MAX_ORDER(cap), 1u);
  EXPECT_GE(KZ_CAP_IOVA_BITS(cap), 32u);
  EXPECT_LE(KZ_CAP_IOVA_BITS(cap), 64u);
  const uint64_t size = read(KZ_REG_HBM_SIZE_LO) | uint64_t{read(KZ_REG_HBM_SIZE_HI)} << 32;
  const uint32_t page = read(KZ_REG_HBM_PAGE);
  EXPECT_TRUE(std::has_single_bit(page)) << page;
  EXPECT_GT(size, 0u);
  EXPECT_EQ(page ? size % page : 1, 0u);
  EXPECT_GE(read(KZ_REG_MAX_DIM), 16u);
  EXPECT_EQ(read(KZ_REG_STATUS) & (KZ_STATUS_READY | KZ_STATUS_FATAL | KZ_STATUS_RESETTING), KZ_STATUS_READY);
  for (unsigned dtype = 0; dtype < 4; ++dtype)
    if (!(read(KZ_REG_DTYPES) & (1u << dtype))) {
      EXPECT_EQ(read(KZ_REG_NUMERIC(dtype)), 0u) << "numeric contract of a missing type";
    }
  EXPECT_EQ(caps().limits.hbm_bytes, size);
  // Unlisted offsets read zero, a scratch register keeps what is written.
  if (caps().has(Cap::raw_registers)) {
    EXPECT_EQ(read(0x0ff0), 0u);
  }
  for (uint32_t value : {0x5a5aa5a5u, 0u}) {
    device().write_register(KZ_REG_SCRATCH, value);
    EXPECT_EQ(read(KZ_REG_SCRATCH), value);
  }
}

KZ_TEST(identify, telemetry,
        {.meaning = "temperatures, power, clock, fan and memory are values that a device can have, within "
                    "its own limits",
         .level = 1,
         .needs = {Cap::telemetry}}) {
  const Telemetry t = device().telemetry();
  if (t.all_ones) {
    evidence(ev::telemetry, {{"what", "all_ones"}, {"field", "block"}});
    FAIL() << "the telemetry block reads as all ones: nothing in it is a measurement";
  }
  in_range("core_celsius", t.core_celsius, -40, 125);
  in_range("hbm_celsius", t.hbm_celsius, -40, 125);
  in_range("limit_celsius", t.limit_celsius, 40, 125);
  in_range("critical_celsius", t.critical_celsius, 40, 150);
  in_range("power_watts", t.power_watts, 0.1, 2000);
  in_range("power_cap_watts", t.power_cap_watts, 1, 2000);
  in_range("clock_max_mhz", t.clock_max_mhz, 10, 10000);
  if (t.clock_mhz && t.clock_max_mhz && *t.clock_mhz > *t.clock_max_mhz * 1.001)
    implausible("clock_mhz", *t.clock_mhz, "above its maximum");
  if (t.hbm_free && t.hbm_bytes && *t.hbm_free > *t.hbm_bytes)
    implausible("hbm_free", static_cast<double>(*t.hbm_free), "more than there is");
  if (t.pages_retired && t.pages_retire_max && *t.pages_retired > *t.pages_retire_max)
    implausible("pages_retired", *t.pages_retired, "beyond what the device may retire: replace it");
  auto limit = [](const char* what, double value, double bound, double celsius, const std::string& text) {
    evidence(
        ev::limits,
        {{"what", what}, {"value", value}, {"limit", bound}, {"under_load", false}, {"celsius", celsius}});
    ADD_FAILURE() << text;
  };
  const double celsius = t.core_celsius.value_or(0);
  if (t.fan_rpm && *t.fan_rpm == 0) limit("fan_stopped", 0, 1, celsius, "the fan stands still");
  if (t.power_watts && t.power_cap_watts && *t.power_watts > *t.power_cap_watts * 1.005)
    limit("over_cap", *t.power_watts, *t.power_cap_watts, celsius, "power is above its cap in idle");
  if (t.limit_celsius && celsius > *t.limit_celsius)
    limit("over_limit", celsius, *t.limit_celsius, celsius, "hotter than its limit in idle");
  if (t.throttle.value_or(0)) {
    const bool brownout = *t.throttle & KZ_THROTTLE_BROWNOUT;
    limit(brownout ? "brownout" : "throttled", t.clock_mhz.value_or(0), t.clock_max_mhz.value_or(0), celsius,
          "throttled in idle");
  } else if (t.clock_mhz && t.clock_max_mhz && *t.clock_mhz < *t.clock_max_mhz * 0.95) {
    metric("identify.idle_clock", *t.clock_mhz, "MHz");  // a device may save power when it is idle
  }
  metric("identify.core_celsius", celsius, "C");
}

KZ_TEST(identify, telemetry_moves,
        {.meaning = "the telemetry block is rewritten and the heartbeat counts",
         .level = 1,
         .needs = {Cap::telemetry, Cap::heartbeat}}) {
  const Telemetry first = device().telemetry();
  if (first.all_ones) {
    evidence(ev::telemetry, {{"what", "all_ones"}, {"field", "block"}});
    FAIL() << "the telemetry block reads as all ones";
  }
  Telemetry now = first;
  bool block = false, beat = false;
  seen_within(1500ms, [&] {
    now = device().telemetry();
    block |= now.device_ns && now.device_ns != first.device_ns;
    beat |= now.heartbeat && now.heartbeat != first.heartbeat;
    return block && beat;
  });
  if (!block && first.device_ns) {
    evidence(ev::telemetry, {{"what", "frozen"}, {"field", "device_ns"}});
    ADD_FAILURE() << "the telemetry block did not change for 1.5 s";
  }
  if (heartbeat_state(device()) == "stopped") {
    evidence(ev::telemetry, {{"what", "heartbeat_stopped"}, {"field", "heartbeat"}});
    ADD_FAILURE() << "the heartbeat did not count";
  }
  if (block && !beat) {
    evidence(ev::telemetry, {{"what", "heartbeat_stopped"}, {"field", "heartbeat"}});
    ADD_FAILURE() << "the block's heartbeat did not count for 1.5 s";
  }
}

KZ_TEST(identify, firmware_version,
        {.meaning =
             "the firmware is of the series that this ABI was written for, and says so the same everywhere",
         .level = 1,
         .needs = {Cap::firmware_version}}) {
  const uint32_t version = device().telemetry().firmware_version.value_or(0);
  const std::string known = fmt::format("{}.{}.x", KZ_FW_KNOWN_MAJOR, KZ_FW_KNOWN_MINOR);
  if (version == ~0u) block("the telemetry block reads as all ones: the version cannot be told");
  auto check = [&](uint32_t v, const char* where) {
    if ((v >> 24) == KZ_FW_KNOWN_MAJOR && ((v >> 16) & 0xff) == KZ_FW_KNOWN_MINOR) return;
    evidence(ev::firmware, {{"what", "version"}, {"got", firmware_text(v)}, {"want", known}});
    ADD_FAILURE() << where << " says firmware " << firmware_text(v) << ", this ABI knows " << known;
  };
  check(version, "telemetry");
  if (caps().has(Cap::registers)) check(device().read_register(KZ_REG_FW_VERSION), "the version register");
}

KZ_TEST(identify, clock,
        {.meaning = "the device clock never runs backwards and keeps the host's pace",
         .level = 1,
         .needs = {Cap::registers, Cap::timestamp}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  uint64_t last = 0, first = 0, reads = 0, back = 0;
  auto take = [&](uint64_t now, const char* where) {
    if (now < last && back++ == 0) {
      evidence(ev::telemetry, {{"what", "clock_backwards"}, {"field", where}, {"by_ns", last - now}});
      ADD_FAILURE() << where << " went back by " << last - now << " ns";
    }
    last = now;
    ++reads;
  };
  auto read = [&] {
    const uint64_t low = device().read_register(KZ_REG_TIME_LO);
    return low | uint64_t{device().read_register(KZ_REG_TIME_HI)} << 32;
  };
  // Each end lies between two readings of the host's clock: a busy host widens the answer, it does not
  // falsify it.
  const auto begin_low = Clock::now();
  first = last = read();
  const auto begin_high = Clock::now();
  for (Deadline watch(700ms); !watch.passed();) {
    take(read(), "KZ_REG_TIME");
    if (reads % 8 == 0) take(run_good(*queue, {cmd::Timestamp{}}).result, "TIMESTAMP");
  }
  const auto end_low = Clock::now();
  const auto device_ns = static_cast<double>(read() - first);
  const auto end_high = Clock::now();
  const double slowest = device_ns / static_cast<double>((end_high - begin_low) / 1ns);
  const double pace = device_ns / static_cast<double>((end_low - begin_high) / 1ns);
  metric("identify.clock_pace", pace, "ratio");
  if (pace > 0.95 && slowest < 1.05) return;
  if (back == 0)
    evidence(ev::telemetry, {{"what", "implausible"}, {"field", "KZ_REG_TIME"}, {"value", pace}});
  ADD_FAILURE() << "the device clock ran at " << pace << " of the host's";
}

KZ_TEST(identify, first_interrupt,
        {.meaning = "a command completes and its interrupt arrives",
         .level = 1,
         .needs = {Cap::interrupts, Cap::queues}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  for (int i = 0; i < 8; ++i) run_good(*queue, {cmd::Nop{}});
  EXPECT_GE(queue->audit().interrupts, 1u) << "eight commands completed without a single interrupt";
}

}  // namespace kz::test
