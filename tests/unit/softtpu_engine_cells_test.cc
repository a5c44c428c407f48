// SPDX-License-Identifier: GPL-2.0-or-later
// Each cell fault against what its definition says, written out by hand. All accesses go through the trapped
// aperture, which takes the same way as DMA, MARCH and the units.
#include <algorithm>
#include <bit>
#include <cmath>

#include "shim/base/error.h"
#include "tests/unit/softtpu_engine_rig.h"

namespace kz::softtpu {
namespace {

using rig::hbm_bytes;

// The victim is word 0x100000 of 0x800000, in the middle of memory, bit 5.
class SofttpuCells : public rig::Rig {
 protected:
  static constexpr uint64_t victim = hbm_bytes / 4;
  static constexpr uint64_t bit = uint64_t{1} << 5;
  static constexpr uint64_t ones = ~uint64_t{0};
  static nlohmann::json place(nlohmann::json more = nlohmann::json::object()) {
    more["addr_frac"] = 0.25;
    more["bit"] = 5;
    return more;
  }
};

TEST_F(SofttpuCells, SoundMemoryKeepsWhatIsWritten) {
  poke(victim, 0x0123456789abcdef);
  EXPECT_EQ(peek(victim), 0x0123456789abcdefu);
  ASSERT_EQ(engine->direct_ranges().size(), 1u);
  EXPECT_EQ(engine->direct_ranges()[0].size, hbm_bytes);
}

TEST_F(SofttpuCells, M01_M02_StuckAt) {
  int id = plant("M01", place());
  poke(victim, ones);
  EXPECT_EQ(peek(victim), ones & ~bit);
  EXPECT_EQ(peek(victim + 8), 0u);
  faults.clear(id);
  plant("M02", place());
  EXPECT_EQ(peek(victim), ones) << "reads as 1 although never written";
  poke(victim, 0);
  EXPECT_EQ(peek(victim), bit);
}

TEST_F(SofttpuCells, FaultedPageIsNotMapped) {
  plant("M01", place());
  auto ranges = engine->direct_ranges();
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].offset, 0u);
  EXPECT_EQ(ranges[0].size, victim);
  EXPECT_EQ(ranges[1].offset, victim + rig::page);
  EXPECT_EQ(ranges[1].offset + ranges[1].size, hbm_bytes);
}

TEST_F(SofttpuCells, M03_TransitionUpFails) {
  plant("M03", place());
  poke(victim, bit);
  EXPECT_EQ(peek(victim), 0u) << "0 -> 1 fails";
  poke(victim, 0);
  EXPECT_EQ(peek(victim), 0u);
}

TEST_F(SofttpuCells, M04_TransitionDownFails) {
  plant("M04", place());
  poke(victim, ones);
  EXPECT_EQ(peek(victim), ones);
  poke(victim, 0);
  EXPECT_EQ(peek(victim), bit) << "1 -> 0 fails";
  poke(victim, 0);
  EXPECT_EQ(peek(victim), bit);
}

TEST_F(SofttpuCells, M05_CouplingInversion) {
  plant("M05", place({{"agg_words", 9}, {"agg_below", 1}, {"agg_bit", 29}, {"rise", 1}}));
  const uint64_t agg = victim - 72, agg_bit = uint64_t{1} << 29;
  poke(agg, 0);
  poke(victim, 0);
  poke(agg, agg_bit);
  EXPECT_EQ(peek(victim), bit) << "rise inverts 0";
  poke(agg, agg_bit);
  EXPECT_EQ(peek(victim), bit) << "no transition";
  poke(agg, 0);
  EXPECT_EQ(peek(victim), bit) << "the fall does nothing";
  poke(agg, agg_bit);
  EXPECT_EQ(peek(victim), 0u) << "rise inverts 1";
}

TEST_F(SofttpuCells, M06_CouplingIdempotentFourKinds) {
  for (unsigned kind = 0; kind < 4; ++kind) {
    bool rise = (kind & 2) != 0, value = (kind & 1) != 0;
    int id = plant("M06", place({{"agg_words", 3}, {"agg_below", 0}, {"agg_bit", 5}, {"kind", kind}}));
    const uint64_t agg = victim + 24;
    for (bool start : {false, true}) {
      poke(agg, rise ? 0 : bit);
      poke(victim, start ? bit : 0);
      poke(agg, rise ? bit : 0);
      EXPECT_EQ(peek(victim), value ? bit : 0) << kind << start;
      poke(victim, start ? bit : 0);
      EXPECT_EQ(peek(victim), start ? bit : 0) << "a write of the victim holds";
      poke(agg, rise ? 0 : bit);
      EXPECT_EQ(peek(victim), start ? bit : 0) << "the other transition does nothing";
    }
    faults.clear(id);
  }
}

TEST_F(SofttpuCells, M07_CouplingStateFourKinds) {
  for (unsigned kind = 0; kind < 4; ++kind) {
    bool state = (kind & 2) != 0, value = (kind & 1) != 0;
    int id = plant("M07", place({{"agg_words", 1}, {"agg_below", 0}, {"agg_bit", 0}, {"kind", kind}}));
    const uint64_t agg = victim + 8;
    poke(agg, state ? 0 : 1);
    poke(victim, value ? 0 : bit);
    EXPECT_EQ(peek(victim), value ? 0 : bit) << "aggressor in the other state";
    poke(agg, state ? 1 : 0);
    EXPECT_EQ(peek(victim), value ? bit : 0);
    poke(victim, value ? 0 : bit);
    EXPECT_EQ(peek(victim), value ? bit : 0) << "held while the state lasts";
    faults.clear(id);
  }
}

TEST_F(SofttpuCells, CouplingInsideOneWord) {
  plant("M06", place({{"agg_words", 0}, {"agg_bit", 5}, {"kind", 3}}));  // the aggressor moves to bit 6
  poke(victim, 0);
  poke(victim, bit << 1);
  EXPECT_EQ(peek(victim), (bit << 1) | bit);
}

TEST_F(SofttpuCells, M08_NoCell) {
  plant("M08", {{"addr_frac", 0.25}, {"value", 1}});
  poke(victim, 0x1234);
  EXPECT_EQ(peek(victim), ones);
  poke(victim + 8, 7);
  EXPECT_EQ(peek(victim + 8), 7u);
}

TEST_F(SofttpuCells, M09_TwoCells) {
  for (unsigned wired_or : {0u, 1u}) {
    int id = plant("M09", {{"addr_frac", 0.25}, {"other_words", 64}, {"wired_or", wired_or}});
    const uint64_t other = victim + 512;
    poke(other, 0);
    poke(victim, 0xff);
    EXPECT_EQ(peek(other), 0xffu) << "both cells are written";
    poke(other, 0x0f0);
    EXPECT_EQ(peek(victim), wired_or != 0 ? 0x0ffu : 0x0f0u) << "both cells are read";
    EXPECT_EQ(peek(other), 0x0f0u);
    faults.clear(id);
  }
}

TEST_F(SofttpuCells, M10_IgnoredAddressBit) {
  plant("M10", {{"bit", 20}});
  const uint64_t line = uint64_t{1} << 20, low = 0x2200000, up = low | line;
  ASSERT_EQ(low & line, 0u);
  poke(low, 1);
  poke(up, 2);
  EXPECT_EQ(peek(low), 2u);
  poke(low + 8, 3);
  EXPECT_EQ(peek(up + 8), 3u);
  EXPECT_TRUE(engine->direct_ranges().empty());
}

TEST_F(SofttpuCells, M11_StuckOpenReturnsTheLastRead) {
  plant("M11", place());
  const uint64_t neighbour = victim + 8;  // same line, so same bank
  poke(neighbour, bit);
  poke(victim, 0);
  EXPECT_EQ(peek(neighbour), bit);
  EXPECT_EQ(peek(victim), bit);
  poke(neighbour, 0);
  EXPECT_EQ(peek(neighbour), 0u);
  poke(victim, bit | 1);
  EXPECT_EQ(peek(victim), 1u) << "the cell is not reached, its word is";
  EXPECT_EQ(peek(victim), 1u);
}

TEST_F(SofttpuCells, M12_Retention) {
  plant("M12", place({{"value", 1}, {"ms", 60}}));
  auto written = std::chrono::steady_clock::now();
  poke(victim, 0);
  uint64_t first = peek(victim);
  bool early = std::chrono::steady_clock::now() - written < std::chrono::milliseconds(60);
  EXPECT_TRUE(first == 0 || !early);
  while (peek(victim) == 0 && std::chrono::steady_clock::now() - written < std::chrono::seconds(5))
    std::this_thread::yield();
  EXPECT_EQ(peek(victim), bit);
  EXPECT_GE(std::chrono::steady_clock::now() - written, std::chrono::milliseconds(60));
  poke(victim, 0);
  poke(victim, ones);
  EXPECT_EQ(peek(victim), ones) << "the stable state stays";
}

TEST_F(SofttpuCells, M13_ReadDestructive) {
  plant("M13", place({{"value", 1}}));
  poke(victim, bit);
  EXPECT_EQ(peek(victim), 0u);
  EXPECT_EQ(peek(victim), 0u) << "the cell has flipped, and 0 is not sensitive";
}

TEST_F(SofttpuCells, M14_DeceptiveReadDestructive) {
  plant("M14", place({{"value", 0}}));
  poke(victim, 0);
  EXPECT_EQ(peek(victim), 0u) << "right once";
  EXPECT_EQ(peek(victim), bit) << "but it flipped";
}

TEST_F(SofttpuCells, M15_IncorrectRead) {
  plant("M15", place({{"value", 0}}));
  poke(victim, 0);
  EXPECT_EQ(peek(victim), bit);
  EXPECT_EQ(peek(victim), bit);
  poke(victim, bit);
  EXPECT_EQ(peek(victim), bit) << "1 is read correctly";
}

TEST_F(SofttpuCells, M16_WriteDisturb) {
  plant("M16", place({{"value", 1}}));
  poke(victim, bit);
  EXPECT_EQ(peek(victim), bit) << "a transition is no disturbance";
  poke(victim, bit);
  EXPECT_EQ(peek(victim), 0u) << "1 over 1 flips";
  poke(victim, 0);
  EXPECT_EQ(peek(victim), 0u) << "0 over 0 does not";
}

TEST_F(SofttpuCells, M16_UnwrittenBitsAreNotDisturbed) {
  plant("M16", place({{"value", 1}}));
  poke(victim, bit);
  const std::byte other[1] = {std::byte{0x55}};
  engine->aperture_write(victim + 3, other);  // the victim's bit is in byte 0
  EXPECT_EQ(peek(victim), bit | (uint64_t{0x55} << 24));
}

TEST_F(SofttpuCells, M17_LinkedFaultsMaskEachOther) {
  plant("M17", place({{"agg_words", 9},
                      {"agg_below", 1},
                      {"agg_bit", 29},
                      {"agg2_words", 5},
                      {"agg2_below", 0},
                      {"rise", 1},
                      {"rise2", 1},
                      {"value", 1}}));
  const uint64_t first = victim - 72, second = victim + 40, agg_bit = uint64_t{1} << 29;
  poke(victim, 0);
  poke(first, agg_bit);
  EXPECT_EQ(peek(victim), bit);
  poke(second, agg_bit);
  EXPECT_EQ(peek(victim), 0u) << "the second hides what the first did";
}

TEST_F(SofttpuCells, M18_RowHammer) {
  plant("M18", place({{"n", 2000}, {"refresh_ms", 8000}}));
  kz_hbm_place p = kz_hbm_split(victim, KZ_GEOM_DEFAULT);
  kz_hbm_place n = p;
  ++n.row;
  const uint64_t aggressor = kz_hbm_join(n, KZ_GEOM_DEFAULT);
  auto hammer = [&](uint64_t at, int times) {
    for (int i = 0; i < times; ++i) peek(at);
  };
  poke(victim, 0);
  hammer(aggressor, 1999);
  EXPECT_EQ(peek(victim), 0u) << "one short; and this read refreshed the row";
  hammer(aggressor, 1999);
  EXPECT_EQ(peek(victim), 0u);
  hammer(aggressor, 2000);
  EXPECT_EQ(peek(victim), bit);
  poke(victim, 0);
  kz_hbm_place far = p;
  far.row += 2;
  hammer(kz_hbm_join(far, KZ_GEOM_DEFAULT), 3000);
  kz_hbm_place bank = n;
  bank.bank ^= 1;
  hammer(kz_hbm_join(bank, KZ_GEOM_DEFAULT), 3000);
  EXPECT_EQ(peek(victim), 0u) << "not a neighbour";
}

TEST_F(SofttpuCells, M19_IntermittentRate) {
  plant("M19", {{"rate", 5e-6}});
  // 8 x 64 MiB of words read: 67 million reads, 336 flips expected, sigma 18.
  uint64_t flips = 0;
  for (int i = 0; i < 8; ++i) flips += ok(march(0, hbm_bytes, {KZ_MARCH_R0}));
  double expected = 8.0 * hbm_bytes / 8 * 5e-6;
  EXPECT_NEAR(static_cast<double>(flips), expected, 5 * std::sqrt(expected));
  faults.clear(0);
  EXPECT_EQ(ok(march(0, hbm_bytes, {KZ_MARCH_R0})), 0u) << "the cells themselves are good";
}

TEST_F(SofttpuCells, M20_OnlyWhenHot) {
  plant("M20", place({{"celsius", 55}}));
  poke(victim, 0);
  engine->set_temperature(54);
  EXPECT_EQ(peek(victim), 0u);
  engine->set_temperature(56);
  EXPECT_EQ(peek(victim), bit);
  engine->set_temperature(40);
  EXPECT_EQ(peek(victim), 0u);
}

TEST_F(SofttpuCells, M21_DeadPseudoChannel) {
  plant("M21", {{"pc", 11}, {"value", 0}});  // channel 3, pseudo channel 1
  uint64_t wrong = 0;
  for (uint64_t line = 0; line < 1024; ++line) {
    uint64_t addr = victim + line * 64 + 8;
    kz_hbm_place p = kz_hbm_split(addr, KZ_GEOM_DEFAULT);
    poke(addr, ones);
    bool dead = p.channel == 3 && p.pseudo == 1;
    EXPECT_EQ(peek(addr), dead ? 0 : ones) << line;
    wrong += dead;
  }
  EXPECT_EQ(wrong, 64u);
  EXPECT_TRUE(engine->direct_ranges().empty());
}

TEST_F(SofttpuCells, M22_StuckLane) {
  plant("M22", {{"channel", 2}, {"lane", 63}, {"value", 1}});
  for (uint64_t line = 0; line < 64; ++line) {
    uint64_t addr = victim + line * 64;
    poke(addr, 0);
    bool stuck = kz_hbm_split(addr, KZ_GEOM_DEFAULT).channel == 2;
    EXPECT_EQ(peek(addr), stuck ? uint64_t{1} << 63 : 0) << line;
  }
}

TEST_F(SofttpuCells, M28_BankSwizzleAliases) {
  plant("M28", {{"bank", 3}, {"other", 9}});
  kz_hbm_place a = kz_hbm_split(victim, KZ_GEOM_DEFAULT), b = a, c = a;
  a.bank = 3;
  b.bank = 9;
  c.bank = 4;
  auto at = [](kz_hbm_place p) { return kz_hbm_join(p, KZ_GEOM_DEFAULT); };
  poke(at(a), 1);
  poke(at(b), 2);
  poke(at(c), 3);
  EXPECT_EQ(peek(at(a)), 2u);
  EXPECT_EQ(peek(at(b)), 2u);
  EXPECT_EQ(peek(at(c)), 3u);
}

// Above 4 GiB, where a 32-bit address line is lost. The memory is sparse: nothing of the 8 GiB is touched but
// two pages.
class SofttpuBigCells : public rig::Rig {
 protected:
  SofttpuBigCells() : Rig({.hbm_bytes = uint64_t{8} << 30}) {}
};

TEST_F(SofttpuBigCells, M10_AliasAtThe4GiBLine) {
  plant("M10", {{"bit", 32}});
  poke(0x5000, 1);
  poke(0x5000 + (uint64_t{1} << 32), 2);
  EXPECT_EQ(peek(0x5000), 2u);
}

TEST_F(SofttpuBigCells, AddressFractionReachesTheEnds) {
  plant("M01", {{"addr_frac", 0.0}, {"bit", 0}});
  plant("M01", {{"addr_frac", 1.0}, {"bit", 0}});
  const uint64_t last = (uint64_t{8} << 30) - 8;
  poke(0, 3);
  poke(last, 3);
  EXPECT_EQ(peek(0), 2u);
  EXPECT_EQ(peek(last), 2u);
}

}  // namespace
}  // namespace kz::softtpu
