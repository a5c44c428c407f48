// SPDX-License-Identifier: GPL-2.0-or-later
// MARCH through execute(): what published tests find and miss, and that the fast way of sound pages is the
// slow one's equal.
#include <algorithm>
#include <random>

#include "tests/unit/softtpu_engine_rig.h"

namespace kz::softtpu {
namespace {

using rig::hbm_bytes;
constexpr uint8_t w0 = KZ_MARCH_W0, w1 = KZ_MARCH_W1, r0 = KZ_MARCH_R0, r1 = KZ_MARCH_R1;
constexpr uint8_t up = KZ_MARCH_UP, down = KZ_MARCH_DOWN;

struct Element {
  uint8_t order;
  std::vector<uint8_t> ops;
};
using Algorithm = std::vector<Element>;

// A. J. van de Goor 1991; Hamdioui, van de Goor, Rodgers 2002 (SS) and 2003 (SL).
const Algorithm c_minus = {{up, {w0}},       {up, {r0, w1}},   {up, {r1, w0}},
                           {down, {r0, w1}}, {down, {r1, w0}}, {up, {r0}}};
const Algorithm march_ss = {{up, {w0}},
                            {up, {r0, r0, w0, r0, w1}},
                            {up, {r1, r1, w1, r1, w0}},
                            {down, {r0, r0, w0, r0, w1}},
                            {down, {r1, r1, w1, r1, w0}},
                            {up, {r0}}};
const Algorithm march_sl = {{up, {w0}},
                            {up, {r0, r0, w1, w1, r1, r1, w0, w0, r0, w1}},
                            {up, {r1, r1, w0, w0, r0, r0, w1, w1, r1, w0}},
                            {down, {r0, r0, w1, w1, r1, r1, w0, w0, r0, w1}},
                            {down, {r1, r1, w0, w0, r0, r0, w1, w1, r1, w0}}};
const Algorithm stuck_open = {{up, {w0}}, {up, {r0, w1, r1}}, {down, {r1, w0, r0}}};

class SofttpuMarch : public rig::Rig {
 protected:
  static constexpr uint64_t around = hbm_bytes / 4 - (1 << 19), length = 1 << 20;

  uint64_t mismatches(const Algorithm& test, uint64_t addr = around, uint64_t len = length) {
    uint64_t n = 0;
    for (const Element& e : test) n += ok(march(addr, len, e.ops, e.order));
    return n;
  }
  bool finds(const Algorithm& test, const char* row, nlohmann::json params) {
    params["addr_frac"] = 0.25;
    int id = plant(row, params);
    ok(fill(around, length, ~uint64_t{0}));  // a first w0 over 0 would be a write-disturb operation by chance
    bool found = mismatches(test) != 0;
    faults.clear(id);
    EXPECT_EQ(mismatches(c_minus), 0u) << "memory is sound again";
    return found;
  }
};

TEST_F(SofttpuMarch, SoundMemoryIsSilent) {
  for (const Algorithm* t : {&c_minus, &march_ss, &march_sl, &stuck_open})
    EXPECT_EQ(mismatches(*t, 0, hbm_bytes), 0u);
}

TEST_F(SofttpuMarch, CMinusFindsWhatItIsMadeFor) {
  for (uint64_t bit : {0, 13, 63}) {
    for (const char* row : {"M01", "M02", "M03", "M04"})
      EXPECT_TRUE(finds(c_minus, row, {{"bit", bit}})) << row << bit;
    for (unsigned value : {0u, 1u}) {
      EXPECT_TRUE(finds(c_minus, "M13", {{"bit", bit}, {"value", value}}));
      EXPECT_TRUE(finds(c_minus, "M15", {{"bit", bit}, {"value", value}}));
    }
  }
  EXPECT_TRUE(finds(c_minus, "M08", {{"value", 0}}));
  EXPECT_TRUE(finds(c_minus, "M08", {{"value", 1}}));
  EXPECT_TRUE(finds(c_minus, "M09", {{"other_words", 64}, {"wired_or", 0}}));
  EXPECT_TRUE(finds(c_minus, "M09", {{"other_words", 64}, {"wired_or", 1}}));
}

TEST_F(SofttpuMarch, CMinusFindsAllCouplings) {
  for (unsigned below : {0u, 1u})
    for (unsigned words : {1u, 7u, 512u})
      for (unsigned kind = 0; kind < 4; ++kind) {
        nlohmann::json p{{"bit", 4}, {"agg_bit", 9}, {"agg_words", words}, {"agg_below", below}};
        auto with = [&](const char* name, unsigned v) {
          nlohmann::json q = p;
          q[name] = v;
          return q;
        };
        EXPECT_TRUE(finds(c_minus, "M06", with("kind", kind))) << below << words << kind;
        EXPECT_TRUE(finds(c_minus, "M07", with("kind", kind))) << below << words << kind;
        if (kind < 2) {
          EXPECT_TRUE(finds(c_minus, "M05", with("rise", kind)));
        }
      }
}

TEST_F(SofttpuMarch, CMinusMissesDeceptiveReadsAndWriteDisturb) {
  for (unsigned value : {0u, 1u}) {
    EXPECT_FALSE(finds(c_minus, "M14", {{"bit", 3}, {"value", value}})) << value;
    EXPECT_FALSE(finds(c_minus, "M16", {{"bit", 3}, {"value", value}})) << value;
    EXPECT_TRUE(finds(march_ss, "M14", {{"bit", 3}, {"value", value}})) << value;
    EXPECT_TRUE(finds(march_ss, "M16", {{"bit", 3}, {"value", value}})) << value;
  }
}

TEST_F(SofttpuMarch, StuckOpenNeedsBothReadsInOneElement) {
  EXPECT_TRUE(finds(stuck_open, "M11", {{"bit", 3}}));
}

TEST_F(SofttpuMarch, SlFindsEveryLinkedCoupling) {
  for (unsigned mask = 0; mask < 32; ++mask) {
    auto is = [mask](unsigned i) { return (mask >> i) & 1u; };
    nlohmann::json p{{"bit", 4},        {"agg_bit", 9},       {"agg_words", 9},
                     {"agg2_words", 5}, {"agg_below", is(0)}, {"agg2_below", is(1)},
                     {"rise", is(2)},   {"rise2", is(3)},     {"value", is(4)}};
    EXPECT_TRUE(finds(march_sl, "M17", p)) << mask;
  }
}

TEST_F(SofttpuMarch, DecoderFaults) {
  // A constant background cannot show an alias of whole words unless the order does; C- can.
  plant("M10", {{"bit", 18}});
  EXPECT_GT(mismatches(c_minus, 0, 1 << 20), 0u);
  faults.clear(0);
  plant("M28", {{"bank", 1}, {"other", 2}});
  EXPECT_GT(mismatches(c_minus, 0, 1 << 20), 0u);
  faults.clear(0);
  plant("M10", {{"bit", 18}});
  kz_cmd own = march(0, 1 << 20, {w0});
  own.u.march.background = KZ_BG_ADDR;
  ok(own);
  own.u.march.ops[0] = r0;
  EXPECT_EQ(ok(own), (1u << 20) / 8 / 2) << "half of all words hold the other's address";
}

TEST_F(SofttpuMarch, RowHammerNeedsManyReads) {
  plant("M18", {{"addr_frac", 0.25}, {"bit", 3}, {"n", 3000}});
  const uint64_t row = 1 << 19, base = hbm_bytes / 4 - 2 * row, len = 5 * row;
  EXPECT_EQ(mismatches(c_minus, base, len), 0u);
  ok(march(base, len, {w0}));
  uint64_t seen = 0;
  for (uint8_t order : {up, down}) seen += ok(march(base, len, std::vector<uint8_t>(12, r0), order));
  EXPECT_GT(seen, 0u);
}

TEST_F(SofttpuMarch, LogNamesPlaceAndValues) {
  plant("M02", {{"addr_frac", 0.25}, {"bit", 7}});
  kz_cmd c = march(around, length, {w0, r0});
  c.u.march.pattern = 0xff00;
  c.u.march.log = rig::host;
  c.u.march.log_max = 3;
  EXPECT_EQ(ok(c), 1u);
  kz_march_fail f;
  std::memcpy(&f, at_host(rig::host), sizeof f);
  EXPECT_EQ(f.addr, hbm_bytes / 4);
  EXPECT_EQ(f.expected, 0xff00u);
  EXPECT_EQ(f.read, 0xff80u);
  EXPECT_EQ(f.op, 1u);
  EXPECT_EQ(f.rsvd, 0u);
}

TEST_F(SofttpuMarch, LogIsLimitedAndInOrder) {
  for (uint8_t order : {up, down}) {
    ok(fill(0, 4096, 0));
    kz_cmd c = march(0, 4096, {r1, r0}, order);  // r1 never fits
    c.u.march.log = rig::host;
    c.u.march.log_max = 5;
    std::fill_n(at_host(rig::host), 6 * sizeof(kz_march_fail), std::byte{0xaa});
    EXPECT_EQ(ok(c), 512u) << "words, not reads";
    std::vector<kz_march_fail> log(6);
    std::memcpy(log.data(), at_host(rig::host), 6 * sizeof(kz_march_fail));
    for (uint64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(log[i].addr, order == up ? 8 * i : 4096 - 8 * (i + 1));
      EXPECT_EQ(log[i].op, 0u);
    }
    EXPECT_EQ(log[5].addr, 0xaaaaaaaaaaaaaaaau) << "beyond log_max";
  }
}

TEST_F(SofttpuMarch, UnmappedLogIsADmaFault) {
  kz_cmd c = march(0, 64, {r1});
  c.u.march.log = 0x999000;
  c.u.march.log_max = 1;
  EXPECT_EQ(run(c).status, KZ_ST_DMA_FAULT);
}

// The model of an element, op by op, on an array of our own.
uint64_t reference(std::vector<uint64_t>& words, uint64_t first, const kz_march& m) {
  uint64_t wrong_words = 0, n = m.len / 8;
  for (uint64_t step = 0; step < n; ++step) {
    uint64_t i = m.order == KZ_MARCH_UP ? step : n - 1 - step, addr = m.addr + 8 * i;
    uint64_t bg = m.background == KZ_BG_ADDR ? addr ^ m.pattern : m.pattern;
    bool wrong = false;
    for (unsigned k = 0; k < m.nops; ++k) {
      uint64_t value = m.ops[k] == w1 || m.ops[k] == r1 ? ~bg : bg;
      uint64_t& cell = words[(addr - first) / 8];
      if (m.ops[k] == w0 || m.ops[k] == w1)
        cell = value;
      else
        wrong |= cell != value;
    }
    wrong_words += wrong;
  }
  return wrong_words;
}

TEST_F(SofttpuMarch, RandomElementsAgreeWithTheModel) {
  std::mt19937_64 rng(42);
  const uint64_t first = 3 * rig::page - 4096, size = 3 * rig::page;
  std::vector<uint64_t> model(size / 8);
  for (int round = 0; round < 300; ++round) {
    // A defect that never shows: the page takes the slow way, with the same answers.
    if (round == 150) plant("M20", {{"addr_frac", 4.0 * rig::page / hbm_bytes}, {"bit", 0}, {"celsius", 60}});
    kz_cmd c = march(first + rng() % 64 * 8, 8 + rng() % 4096 * 8, {0});
    kz_march& m = c.u.march;
    if (rng() % 4 == 0) m.len = size - (m.addr - first);
    m.nops = static_cast<uint8_t>(1 + rng() % KZ_MARCH_OPS);
    for (unsigned k = 0; k < m.nops; ++k) m.ops[k] = static_cast<uint8_t>(rng() % 4);
    m.order = rng() % 2;
    m.background = rng() % 2;
    m.pattern = rng() % 3 == 0 ? 0 : rng();
    EXPECT_EQ(ok(c), reference(model, first, m)) << round;
  }
  std::vector<uint64_t> real(size / 8);
  engine->aperture_read(first, std::as_writable_bytes(std::span(real)));
  EXPECT_EQ(real, model);
}

TEST_F(SofttpuMarch, OwnAddressUsesTheContextsAddresses) {
  uint32_t ctx = new_context();
  uint64_t addr = ok(alloc(rig::page, ctx));
  kz_cmd c = march(addr, rig::page, {w0});
  c.u.march.background = KZ_BG_ADDR;
  c.u.march.pattern = 0x10;
  ok(c, ctx);
  uint64_t physical = ok(memory(KZ_OP_HBM_QUERY, addr, ctx));
  EXPECT_EQ(peek(physical + 8), (addr + 8) ^ 0x10);
}

TEST_F(SofttpuMarch, CancelStopsIt) {
  std::atomic<bool> cancel{true};
  EXPECT_EQ(engine->execute(march(0, hbm_bytes, {w1}), {0, 0, &cancel}).status, KZ_ST_ABORTED);
  EXPECT_EQ(peek(hbm_bytes - 8), 0u);
}

}  // namespace
}  // namespace kz::softtpu
