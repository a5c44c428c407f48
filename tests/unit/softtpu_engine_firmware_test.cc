// SPDX-License-Identifier: GPL-2.0-or-later
// Firmware, resets, telemetry and heat, with the faults of this part.
#include <cmath>
#include <functional>
#include <memory>

#include "tests/unit/softtpu_engine_rig.h"
#include "tools/softtpu/exec_crc32c.h"
#include "tools/softtpu/thermal.h"

namespace kz::softtpu {
namespace {

using namespace std::chrono_literals;
using rig::host;
using rig::page;

class SofttpuFirmware : public rig::Rig {
 protected:
  static constexpr uint32_t old_version = KZ_FW_VERSION(1u, 4u, 2u), new_version = KZ_FW_VERSION(1u, 4u, 9u);

  // A sound image in host memory; `edit` spoils the header before its CRC is made, `break_after` after.
  uint64_t image(std::function<void(kz_fw_header&)> edit = {},
                 std::function<void(std::byte*)> break_after = {}) {
    const uint32_t payload = 1000;
    std::byte* at = at_host(host);
    for (uint32_t i = 0; i < payload; ++i) at[sizeof(kz_fw_header) + i] = static_cast<std::byte>(i * 7);
    kz_fw_header h{};
    h.magic = KZ_FW_MAGIC;
    h.version = new_version;
    h.length = payload;
    h.crc32c = crc32c_portable(0, {at + sizeof h, payload});
    if (edit) edit(h);
    h.header_crc32c = crc32c_portable(0, std::as_bytes(std::span(&h, 1)).first(16));
    std::memcpy(at, &h, sizeof h);
    if (break_after) break_after(at);
    return sizeof h + payload;
  }
  static kz_cmd update(uint64_t len) {
    kz_cmd c = command(KZ_OP_FW_UPDATE);
    c.u.copy.src = host;
    c.u.copy.len = len;
    return c;
  }
};

TEST_F(SofttpuFirmware, UpdateWaitsForTheFirmwareReset) {
  EXPECT_EQ(engine->fw_version(), old_version);
  ok(update(image()));
  EXPECT_TRUE(engine->fw_pending());
  EXPECT_EQ(engine->fw_version(), old_version);
  engine->reset(KZ_RR_FLR);
  EXPECT_EQ(engine->fw_version(), old_version);
  EXPECT_TRUE(engine->fw_pending());
  engine->reset(KZ_RR_FIRMWARE);
  EXPECT_EQ(engine->fw_version(), new_version);
  EXPECT_FALSE(engine->fw_pending());
  EXPECT_EQ(telemetry().fw_version, new_version);
}

TEST_F(SofttpuFirmware, BadImagesAreRefused) {
  auto refused = [&](uint64_t len) {
    uint16_t status = run(update(len)).status;
    EXPECT_FALSE(engine->fw_pending());
    return status;
  };
  EXPECT_EQ(refused(image([](kz_fw_header& h) { h.magic ^= 1; })), KZ_ST_BAD_IMAGE);
  EXPECT_EQ(refused(image([](kz_fw_header& h) { h.length += 1; })), KZ_ST_BAD_IMAGE);
  EXPECT_EQ(refused(image([](kz_fw_header& h) { h.crc32c ^= 1; })), KZ_ST_BAD_IMAGE);
  EXPECT_EQ(refused(image([](kz_fw_header& h) { h.rsvd[11] = 1; })), KZ_ST_BAD_IMAGE);
  EXPECT_EQ(refused(image({}, [](std::byte* b) { b[16] ^= std::byte{1}; })), KZ_ST_BAD_IMAGE) << "header CRC";
  EXPECT_EQ(refused(image({}, [](std::byte* b) { b[4] ^= std::byte{1}; })), KZ_ST_BAD_IMAGE) << "version";
  EXPECT_EQ(refused(image({}, [](std::byte* b) { b[900] ^= std::byte{1}; })), KZ_ST_BAD_IMAGE) << "payload";
  EXPECT_EQ(refused(image() - 1), KZ_ST_BAD_IMAGE) << "truncated";
  EXPECT_EQ(refused(31), KZ_ST_BAD_LENGTH);
  EXPECT_EQ(refused(0), KZ_ST_BAD_LENGTH);
}

TEST_F(SofttpuFirmware, UpdateFieldsAreChecked) {
  uint64_t len = image();
  auto with = [&](auto edit) {
    kz_cmd c = update(len);
    edit(c.u.copy);
    return run(c).status;
  };
  EXPECT_EQ(with([](kz_copy& c) { c.src_space = KZ_SP_HBM; }), KZ_ST_BAD_FIELD);
  EXPECT_EQ(with([](kz_copy& c) { c.dst_space = 1; }), KZ_ST_BAD_FIELD);
  EXPECT_EQ(with([](kz_copy& c) { c.dst = 1; }), KZ_ST_BAD_FIELD);
  EXPECT_EQ(with([](kz_copy& c) { c.src_sges = 1; }), KZ_ST_BAD_FIELD);
  EXPECT_EQ(with([](kz_copy& c) { c.src = 4; }), KZ_ST_DMA_FAULT);
  EXPECT_EQ(with([](kz_copy& c) { c.len = (uint64_t{64} << 20) + 1; }), KZ_ST_BAD_LENGTH);
}

TEST_F(SofttpuFirmware, F21_CorruptImageAccepted) {
  plant("F21");
  ok(update(image({}, [](std::byte* b) { b[900] ^= std::byte{1}; })));
  EXPECT_TRUE(engine->fw_pending());
}

TEST_F(SofttpuFirmware, F08_UpdateBreaksTheRunningJob) {
  plant("F08");
  EXPECT_EQ(run(fill(0, 64, 1), 0, 3).kind, Outcome::Kind::done);
  ok(update(image()));
  EXPECT_EQ(run(fill(0, 64, 1), 0, 3).kind, Outcome::Kind::hang);
  EXPECT_EQ(run(fill(0, 64, 1), 0, 5).kind, Outcome::Kind::done) << "was not at work";
  EXPECT_EQ(run(fill(0, 64, 1), 0, 3).kind, Outcome::Kind::done) << "only once";
}

TEST_F(SofttpuFirmware, F07_WrongVersion) {
  plant("F07", {{"major", 1}, {"minor", 7}});
  EXPECT_EQ(engine->fw_version(), KZ_FW_VERSION(1u, 7u, 0u));
  engine->reset(KZ_RR_FLR);
  EXPECT_EQ(telemetry().fw_version, KZ_FW_VERSION(1u, 7u, 0u));
}

TEST_F(SofttpuFirmware, ResetForgetsAndKeeps) {
  uint32_t ctx = new_context();
  ok(alloc(page, ctx));
  poke(0, 77);
  uint64_t clock = engine->device_ns();
  engine->set_fatal(KZ_RR_FW_CRASH);
  EXPECT_TRUE(engine->fatal());
  EXPECT_EQ(engine->fatal_reason(), uint32_t{KZ_RR_FW_CRASH});
  engine->set_temperature(70);
  engine->reset(KZ_RR_BUS);
  EXPECT_FALSE(engine->fatal());
  EXPECT_FALSE(engine->context_exists(ctx));
  EXPECT_EQ(peek(0), 0u);
  EXPECT_EQ(free_pages(), rig::all_pages);
  EXPECT_EQ(engine->reset_count(), 1u);
  EXPECT_EQ(engine->reset_reason(), uint32_t{KZ_RR_BUS});
  EXPECT_GT(engine->device_ns(), clock);
  kz_telemetry t = telemetry();
  EXPECT_EQ(t.reset_count, 1u);
  EXPECT_EQ(t.reset_reason, uint32_t{KZ_RR_BUS});
  EXPECT_EQ(t.temp_core_mc, 70000);
  EXPECT_EQ(t.contexts, 0u);
  engine->power_on();
  EXPECT_EQ(engine->reset_count(), 2u);
  EXPECT_EQ(engine->reset_reason(), uint32_t{KZ_RR_FLR});
}

// ---- telemetry ----

TEST_F(SofttpuFirmware, TelemetryIsPlausibleWhenIdle) {
  kz_telemetry t = telemetry();
  EXPECT_EQ(t.version, KZ_TEL_VERSION);
  EXPECT_EQ(t.size, sizeof t);
  EXPECT_EQ(t.seq % 2, 0u);
  EXPECT_EQ(t.temp_core_mc, 38000);
  EXPECT_EQ(t.temp_hbm_mc, 40000);
  EXPECT_EQ(t.temp_limit_mc, 95000);
  EXPECT_EQ(t.temp_critical_mc, 105000);
  EXPECT_GT(t.power_mw, 0u);
  EXPECT_LT(t.power_mw, t.power_cap_mw);
  EXPECT_EQ(t.clock_khz, t.clock_max_khz);
  EXPECT_EQ(t.throttle, 0u);
  EXPECT_EQ(t.fan_present, 1u);
  EXPECT_GE(t.fan_rpm, 1000u);
  EXPECT_EQ(t.hbm_bytes, rig::hbm_bytes);
  EXPECT_EQ(t.hbm_free_bytes, rig::hbm_bytes);
}

TEST_F(SofttpuFirmware, EventsShowAtOnceTheRestWithinATenthOfASecond) {
  uint32_t seq = telemetry().seq;
  EXPECT_EQ(telemetry().seq, seq) << "nothing happened";
  ok(alloc(page));
  EXPECT_NE(telemetry().seq, seq);
  EXPECT_EQ(telemetry().hbm_free_bytes, rig::hbm_bytes - page);
  uint64_t commands = telemetry().commands;
  ok(command(KZ_OP_NOP));
  EXPECT_TRUE(tick_until([&] { return telemetry().commands > commands; }, 5s));
}

TEST_F(SofttpuFirmware, HeartBeats) {
  uint32_t beat = engine->heartbeat();
  auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(tick_until([&] { return engine->heartbeat() >= beat + 5; }, 5s));
  EXPECT_TRUE(tick_until([&] { return telemetry().heartbeat >= beat + 5; }, 5s));
  engine->set_fatal(KZ_RR_FW_CRASH);
  beat = engine->heartbeat();
  start = std::chrono::steady_clock::now();
  tick_until([&] { return std::chrono::steady_clock::now() - start > 150ms; }, 5s);
  EXPECT_EQ(engine->heartbeat(), beat) << "dead";
  engine->reset(KZ_RR_FLR);
  plant("F01");
  start = std::chrono::steady_clock::now();
  tick_until([&] { return std::chrono::steady_clock::now() - start > 150ms; }, 5s);
  EXPECT_EQ(engine->heartbeat(), beat);
}

TEST_F(SofttpuFirmware, F09_F10_TelemetryLies) {
  plant("F09");
  kz_telemetry first = telemetry();
  ok(alloc(page));
  kz_telemetry second = telemetry();
  EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0);
  faults.clear(0);
  EXPECT_EQ(telemetry().hbm_free_bytes, rig::hbm_bytes - page);
  plant("F10");
  kz_telemetry t = telemetry();
  for (size_t i = 0; i < sizeof t; ++i) ASSERT_EQ(reinterpret_cast<uint8_t*>(&t)[i], 0xff);
}

TEST_F(SofttpuFirmware, F15_ClockRunsBackwards) {
  plant("F15", {{"back_us", 2000}, {"every_ms", 20}});
  uint64_t last = 0, steps = 0;
  tick_until(
      [&] {
        uint64_t now = ok(command(KZ_OP_TIMESTAMP));
        steps += now < last;
        last = now;
        return steps >= 3;
      },
      5s);
  EXPECT_GE(steps, 3u);
}

TEST_F(SofttpuFirmware, F16_CreepsAndIsBounded) {
  EXPECT_EQ(engine->slowdown(), 1.0);
  plant("F16", {{"percent", 60}, {"accel", 1200}});  // twelvefold a second
  double first = engine->slowdown();
  ASSERT_TRUE(tick_until([&] { return engine->slowdown() > first + 0.5; }, 5s));
  ASSERT_TRUE(tick_until([&] { return engine->slowdown() == 5.0; }, 5s));
}

TEST_F(SofttpuFirmware, F17_RareSpikes) {
  plant("F17", {{"spike_us", 3000}, {"every", 200}});
  int slow = 0;
  for (int i = 0; i < 400; ++i) {
    auto start = std::chrono::steady_clock::now();
    ok(command(KZ_OP_NOP));
    slow += std::chrono::steady_clock::now() - start >= 3ms;
  }
  EXPECT_GE(slow, 2);  // more where the machine itself stalls
  EXPECT_EQ(faults.list()[0]["strikes"], 2);
}

// ---- heat ----

// Steps the model by hand: time constants and end points without waiting.
struct Board {
  FaultBoard faults;
  Thermal thermal{30, faults};
  void run(double seconds, Thermal::Load load) {
    for (double t = 0; t < seconds; t += 0.01) thermal.step(0.01, load);
  }
};
constexpr Thermal::Load full{1, 1, 0}, idle{};

TEST(SofttpuThermal, ApproachesFullLoadWithItsTimeConstants) {
  Board b;
  b.run(2, full);
  EXPECT_NEAR(b.thermal.core(), 38 + 40 * (1 - std::exp(-1)), 0.5);
  b.run(28, full);
  EXPECT_NEAR(b.thermal.core(), 78, 0.5);
  EXPECT_NEAR(b.thermal.hbm(), 84, 0.5);
  auto s = b.thermal.state();
  EXPECT_EQ(s.throttle, 0u);
  EXPECT_GT(s.power_w, 250);
  EXPECT_LT(s.power_w, Thermal::power_cap_w);
  double fan = s.fan_rpm;
  b.run(30, idle);
  EXPECT_NEAR(b.thermal.core(), 38, 0.5);
  EXPECT_NEAR(b.thermal.hbm(), 40, 0.5);
  EXPECT_LT(b.thermal.state().fan_rpm, fan);
}

TEST(SofttpuThermal, HalfBusyIsMostOfTheHeat) {
  Board b;
  b.run(30, {0.5, 0, 0});
  EXPECT_GT(b.thermal.core(), 65);
}

TEST(SofttpuThermal, ThrottlesAtTheLimitAndStopsAtTheCritical) {
  Board b;
  b.thermal.set_ambient(52);
  b.run(30, full);
  auto s = b.thermal.state();
  EXPECT_NE(s.throttle & KZ_THROTTLE_THERMAL, 0u);
  EXPECT_LT(s.clock_mhz, Thermal::clock_max_mhz);
  EXPECT_GT(s.throttle_ms, 0u);
  EXPECT_GT(b.thermal.stretch(), 1.0);
  b.thermal.set_ambient(30);
  b.run(30, idle);
  EXPECT_EQ(b.thermal.state().throttle, 0u);
  EXPECT_EQ(b.thermal.stretch(), 1.0);
  b.thermal.set_temperature(106);
  EXPECT_TRUE(b.thermal.critical());
}

TEST(SofttpuThermal, F11_F12_F13_F14) {
  auto planted = [](const char* row, nlohmann::json params) {
    auto b = std::make_unique<Board>();
    b->faults.inject({{"row", row}, {"params", params}}, true);
    return b;
  };
  auto b = planted("F11", {{"celsius_per_s", 2}});
  b->run(20, idle);
  EXPECT_NEAR(b->thermal.core(), 38 + 40, 5) << "without any load";
  b->run(20, idle);
  EXPECT_TRUE(b->thermal.critical());
  b = planted("F12", {{"clock_percent", 40}});
  b->run(1, idle);
  EXPECT_NEAR(b->thermal.state().clock_mhz, 0.4 * Thermal::clock_max_mhz, 1);
  EXPECT_EQ(b->thermal.state().throttle, unsigned{KZ_THROTTLE_THERMAL});
  EXPECT_NEAR(b->thermal.stretch(), 2.5, 0.01);
  b = planted("F13", {{"percent", 15}});
  b->run(0.1, idle);
  EXPECT_NEAR(b->thermal.state().power_w, 1.15 * Thermal::power_cap_w, 0.1);
  b = planted("F14", nlohmann::json::object());
  b->run(30, full);
  EXPECT_EQ(b->thermal.state().fan_rpm, 0u);
  EXPECT_GT(b->thermal.core(), 95);
}

TEST_F(SofttpuFirmware, WorkHeats) {
  kz_cmd mm = command(KZ_OP_MATMUL);
  mm.u.matmul = {.a = 0,
                 .b = 1 << 20,
                 .c = 2 << 20,
                 .m = 128,
                 .n = 128,
                 .k = 128,
                 .lda = 128,
                 .ldb = 128,
                 .ldc = 128,
                 .dtype = KZ_DT_F32};
  int32_t before = telemetry().temp_core_mc;
  EXPECT_TRUE(tick_until(
      [&] {
        for (int i = 0; i < 50; ++i) ok(mm);
        return telemetry().temp_core_mc > before + 3000;
      },
      20s));
}

TEST_F(SofttpuFirmware, CriticalTemperatureStopsTheDevice) {
  engine->set_temperature(110);
  ASSERT_TRUE(tick_until([&] { return engine->fatal(); }, 5s));
  EXPECT_EQ(engine->fatal_reason(), uint32_t{KZ_RR_THERMAL});
}

TEST_F(SofttpuFirmware, F20_LinkDropsUnderLoadOnly) {
  plant("F20", {{"load_ms", 200}, {"down_ms", 300}});
  auto start = std::chrono::steady_clock::now();
  tick_until([&] { return std::chrono::steady_clock::now() - start > 400ms; }, 5s);
  EXPECT_FALSE(engine->link_lost()) << "idle";
  EXPECT_TRUE(tick_until(
      [&] {
        ok(fill(0, rig::hbm_bytes, 1));
        return engine->link_lost();
      },
      20s));
  EXPECT_TRUE(engine->fatal());
  EXPECT_EQ(engine->fatal_reason(), uint32_t{KZ_RR_POWER_LOSS});
  EXPECT_TRUE(tick_until([&] { return !engine->link_lost(); }, 5s));
  EXPECT_TRUE(tick_until([&] { return (telemetry().throttle & KZ_THROTTLE_BROWNOUT) != 0; }, 5s));
  engine->reset(KZ_RR_FLR);
  EXPECT_FALSE(engine->fatal());
}

}  // namespace
}  // namespace kz::softtpu
