// SPDX-License-Identifier: GPL-2.0-or-later
// ECC: injected and planted errors, their counters, poison and page retirement; and shapes of memory that
// cannot be.
#include "shim/base/error.h"
#include "tests/unit/softtpu_engine_rig.h"

namespace kz::softtpu {
namespace {

using rig::hbm_bytes;

class SofttpuEcc : public rig::Rig {
 protected:
  static kz_cmd inject(uint64_t addr, uint8_t kind) {
    kz_cmd c = command(KZ_OP_ECC_INJECT);
    c.u.ecc.addr = addr;
    c.u.ecc.kind = kind;
    return c;
  }
  uint32_t sum(const __u32 (&counters)[KZ_TEL_CHANNELS]) {
    uint32_t n = 0;
    for (auto c : counters) n += c;
    return n;
  }
};

TEST_F(SofttpuEcc, CorrectableIsCorrectedAndCountedOnce) {
  uint64_t addr = 5 * 64;  // channel 5
  poke(addr, 77);
  ok(inject(addr, KZ_ECC_CE));
  EXPECT_EQ(telemetry().ecc_ce[5], 0u);
  EXPECT_EQ(peek(addr), 77u);
  EXPECT_EQ(telemetry().ecc_ce[5], 1u);
  EXPECT_EQ(peek(addr), 77u);
  kz_telemetry t = telemetry();
  EXPECT_EQ(t.ecc_ce[5], 1u);
  EXPECT_EQ(sum(t.ecc_ce), 1u);
  EXPECT_EQ(sum(t.ecc_ue), 0u);
  EXPECT_EQ(t.ecc_channels, 8u);
}

TEST_F(SofttpuEcc, UncorrectablePoisonsAndRetires) {
  uint64_t addr = ok(alloc(3 * rig::page)) + rig::page + 128;  // channel 2
  ok(inject(addr, KZ_ECC_UE));
  EXPECT_EQ(run(to_host(addr - 64, rig::host, 256)).status, KZ_ST_POISON);
  EXPECT_EQ(telemetry().ecc_ue[2], 1u);
  EXPECT_EQ(telemetry().pages_retired, 0u) << "still in use";
  uint64_t before = free_pages();
  ok(memory(KZ_OP_HBM_FREE, addr - 128 - rig::page));
  EXPECT_EQ(free_pages(), before + 2);
  EXPECT_EQ(retired_pages(), 1u);
  EXPECT_EQ(telemetry().pages_retired, 1u);
  std::vector<uint64_t> all;
  for (Outcome o; (o = run(alloc(rig::page))).status == KZ_ST_OK;) all.push_back(o.result);
  EXPECT_EQ(all.size(), rig::all_pages - 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), addr - 128), 0);
}

TEST_F(SofttpuEcc, OverwritingTheWholeWordHeals) {
  ok(inject(640, KZ_ECC_UE));
  const std::byte part[4] = {};
  engine->aperture_write(640, part);
  EXPECT_EQ(run(to_host(640, rig::host, 8)).status, KZ_ST_POISON);
  poke(640, 5);
  EXPECT_EQ(run(to_host(640, rig::host, 8)).status, KZ_ST_OK);
}

TEST_F(SofttpuEcc, EveryReaderSeesThePoison) {
  ok(inject(0x4000, KZ_ECC_UE));
  EXPECT_EQ(peek(0x4000), ~uint64_t{0}) << "an aborted read";
  kz_cmd crc = command(KZ_OP_CRC32C);
  crc.u.crc = {.src = 0x3000, .len = 0x2000, .src_space = KZ_SP_HBM};
  EXPECT_EQ(run(crc).status, KZ_ST_POISON);
  EXPECT_EQ(run(march(0x4000, 64, {KZ_MARCH_R0})).status, KZ_ST_POISON);
  kz_cmd v = command(KZ_OP_VECTOR);
  v.u.vector = {.a = 0x4000, .b = 0, .dst = 0x8000, .n = 16, .op = KZ_VEC_RELU};
  EXPECT_EQ(run(v).status, KZ_ST_POISON);
  kz_cmd m = command(KZ_OP_MATMUL);
  m.u.matmul = {.a = 0x4000,
                .b = 0x5000,
                .c = 0x6000,
                .m = 2,
                .n = 2,
                .k = 2,
                .lda = 2,
                .ldb = 2,
                .ldc = 2,
                .dtype = KZ_DT_F32};
  EXPECT_EQ(run(m).status, KZ_ST_POISON);
  EXPECT_EQ(run(march(0x4000, 64, {KZ_MARCH_W0, KZ_MARCH_R0})).status, KZ_ST_OK) << "written first";
}

TEST_F(SofttpuEcc, M23_CountsButDataIsGood) {
  plant("M23", {{"channel", 3}, {"every_kib", 64}});
  std::fill_n(at_host(rig::host), 1 << 20, std::byte{0x5a});
  ok(to_hbm(rig::host, 0, 1 << 20));
  ok(to_host(0, rig::host + (1 << 20), 1 << 20));
  EXPECT_EQ(std::memcmp(at_host(rig::host), at_host(rig::host + (1 << 20)), 1 << 20), 0);
  EXPECT_EQ(telemetry().ecc_ce[3], 16u);
  EXPECT_EQ(sum(telemetry().ecc_ue), 0u);
}

TEST_F(SofttpuEcc, M24_PlantedUncorrectableWord) {
  plant("M24", {{"addr_frac", 0.25}});
  uint64_t addr = rig::hbm_bytes / 4;
  EXPECT_EQ(run(to_host(addr, rig::host, 8)).status, KZ_ST_POISON);
  poke(addr, 1);
  EXPECT_EQ(run(to_host(addr, rig::host, 8)).status, KZ_ST_POISON) << "a hard defect";
  EXPECT_EQ(sum(telemetry().ecc_ue), 2u);
}

TEST_F(SofttpuEcc, M25_Miscorrected) {
  plant("M25", {{"addr_frac", 0.25}, {"bit", 1}, {"counted", 0}});
  uint64_t addr = rig::hbm_bytes / 4;
  poke(addr, 0);
  EXPECT_EQ(std::popcount(peek(addr)), 4) << "three flips and a wrong correction";
  EXPECT_EQ(run(to_host(addr, rig::host, 8)).status, KZ_ST_OK);
  EXPECT_EQ(sum(telemetry().ecc_ce) + sum(telemetry().ecc_ue), 0u);
}

TEST_F(SofttpuEcc, M26_CountersStand) {
  plant("M26");
  ok(inject(64, KZ_ECC_CE));
  ok(inject(128, KZ_ECC_UE));
  EXPECT_EQ(run(to_host(0, rig::host, 256)).status, KZ_ST_POISON);
  EXPECT_EQ(sum(telemetry().ecc_ce) + sum(telemetry().ecc_ue), 0u);
}

TEST_F(SofttpuEcc, M27_RetiredPageComesBack) {
  uint64_t addr = ok(alloc(rig::page));
  ok(inject(addr, KZ_ECC_UE));
  EXPECT_EQ(run(to_host(addr, rig::host, 8)).status, KZ_ST_POISON);
  ok(memory(KZ_OP_HBM_FREE, addr));
  EXPECT_EQ(retired_pages(), 1u);
  EXPECT_NE(ok(alloc(rig::page)), addr);
  plant("M27");
  EXPECT_EQ(ok(alloc(rig::page)), addr);
}

TEST_F(SofttpuEcc, CountersAndRetiredPagesSurviveReset) {
  ok(inject(64, KZ_ECC_UE));
  run(to_host(0, rig::host, 128));
  engine->reset(KZ_RR_FLR);
  EXPECT_EQ(sum(telemetry().ecc_ue), 1u);
  EXPECT_EQ(telemetry().pages_retired, 1u);
  EXPECT_EQ(free_pages(), rig::all_pages - 1);
}

class SofttpuNoEcc : public rig::Rig {
 protected:
  SofttpuNoEcc() : Rig({.hbm_bytes = hbm_bytes, .ecc = false}) {}
};

TEST_F(SofttpuNoEcc, HasNoInjection) {
  EXPECT_EQ(run(command(KZ_OP_ECC_INJECT)).status, KZ_ST_BAD_OPCODE);
  EXPECT_EQ(*engine->describe(KZ_REG_FEAT) & (KZ_FEAT_ECC | KZ_FEAT_ECC_INJECT), 0u);
  EXPECT_EQ(telemetry().ecc_channels, 0u);
}

TEST(SofttpuHbm, RefusesImpossibleShapes) {
  FaultBoard faults;
  rig::Bus bus;
  auto refuses = [&](EngineOptions o) {
    try {
      Engine e(o, faults, bus);
      return false;
    } catch (const Error& e) {
      return e.code() == Errc::usage;
    }
  };
  EXPECT_TRUE(refuses({.hbm_bytes = 32 << 20}));
  EXPECT_TRUE(refuses({.hbm_bytes = (64 << 20) + 4096}));
  EXPECT_TRUE(refuses({.hbm_bytes = uint64_t{128} << 30}));
  EXPECT_TRUE(refuses({.hbm_bytes = 64 << 20, .geometry = KZ_GEOM(6u, 1u, 4u, 5u)}));
  EXPECT_TRUE(refuses({.hbm_bytes = 64 << 20, .geometry = KZ_GEOM(5u, 8u, 8u, 8u)}));
  EXPECT_FALSE(refuses({.hbm_bytes = uint64_t{64} << 30}));
}

}  // namespace
}  // namespace kz::softtpu
