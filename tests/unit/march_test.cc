// SPDX-License-Identifier: GPL-2.0-or-later
// The notation, the tables and what they detect. Right values are the published ones: 12 one-cell and 36
// two-cell static fault primitives, and the detection claims of the tests' authors.
#include "memcheck/march.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "memcheck/fault_sim.h"
#include "memcheck/shape.h"
#include "shim/base/error.h"

namespace kz::memcheck {
namespace {

std::set<std::string> missed_families(const MarchTest& test, Order either = Order::up) {
  std::set<std::string> missed;
  for (const auto& f : static_faults())
    if (!detects(test, f, 5, either)) missed.insert(f.family);
  return missed;
}

TEST(MarchNotation, ReadsSignsAndDecoration) {
  auto t = parse_march("t", "{⇕(w0);  ⇑(r0,w1); Del; v r1 w0 ; *r0}");
  ASSERT_EQ(t.elements.size(), 5u);
  EXPECT_EQ(t.elements[0], (MarchElement{Order::either, {MarchOp::w0}}));
  EXPECT_EQ(t.elements[1], (MarchElement{Order::up, {MarchOp::r0, MarchOp::w1}}));
  EXPECT_TRUE(t.elements[2].pause);
  EXPECT_EQ(t.elements[3].order, Order::down);
  EXPECT_EQ(t.elements[4].order, Order::either);
  EXPECT_EQ(to_string(t), "⇕w0;⇑r0w1;Del;⇓r1w0;⇕r0");
}

TEST(MarchNotation, RoundTripsTheTable) {
  for (const auto& row : march_table())
    EXPECT_EQ(to_string(parse_march(row.name, row.notation)), row.notation);
}

TEST(MarchNotation, RefusesNonsense) {
  for (const char* bad :
       {"", "w0", "⇑", "⇑w2", "⇕w0;⇑r1w0", "⇑r0", "⇕w0;⇑r0w1;⇑r0", "⇕w0w0w0w0w0w0w0w0w0w0w0w0w0", "⇕w0;x"}) {
    try {
      parse_march("bad", bad);
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::usage) << bad;
    }
  }
  EXPECT_THROW(march("nobody's"), Error);
}

TEST(MarchTable, HasThePublishedLengths) {
  std::map<std::string, unsigned> n = {{"MATS+", 5}, {"C-", 10}, {"PMOVI", 13},
                                       {"LR", 14},   {"SS", 22}, {"SL", 41}};
  for (const auto& [name, ops] : n) EXPECT_EQ(march(name).ops_per_cell(), ops) << name;
}

TEST(FaultSim, KnowsAllStaticPrimitives) {
  auto all = static_faults();
  std::set<std::string> texts;
  size_t pairs = 0;
  for (const auto& f : all) {
    texts.insert(f.text());
    pairs += f.aggressor_state.has_value();
  }
  EXPECT_EQ(all.size() - pairs, 12u);
  EXPECT_EQ(pairs, 36u);
  EXPECT_EQ(texts.size(), 48u) << "two primitives are the same";
}

TEST(FaultSim, MarchSsDetectsAllStaticFaults) {
  EXPECT_EQ(missed_families(march("SS"), Order::up), std::set<std::string>{});
  EXPECT_EQ(missed_families(march("SS"), Order::down), std::set<std::string>{});
}

TEST(FaultSim, MarchSlDetectsAllStaticFaults) {
  EXPECT_EQ(missed_families(march("SL")), std::set<std::string>{});
}

TEST(FaultSim, MarchCMinusMissesDeceptiveReadsAndWriteDisturbs) {
  auto missed = missed_families(march("C-"));
  for (const char* family : {"DRDF", "WDF", "CFdrd", "CFwd"}) EXPECT_TRUE(missed.contains(family)) << family;
  for (const char* family : {"SF", "TF", "RDF", "IRF", "CFst", "CFtr", "CFrd", "CFir"})
    EXPECT_FALSE(missed.contains(family)) << family;
}

TEST(FaultSim, MatsPlusSeesStuckCellsAndHalfTheTransitions) {
  auto t = march("MATS+");
  size_t transitions = 0;
  for (const auto& f : static_faults()) {
    bool seen = detects(t, f);
    EXPECT_TRUE(seen || f.family != "SF") << f.text();
    transitions += seen && f.family == "TF";
  }
  EXPECT_EQ(transitions, 1u);
}

TEST(FaultSim, PmoviAddsDeceptiveReads) {
  auto missed = missed_families(march("PMOVI"));
  EXPECT_FALSE(missed.contains("DRDF"));
  EXPECT_TRUE(missed.contains("WDF"));
}

TEST(MarchTable, BackgroundsTellEveryPairOfBitsApart) {
  for (unsigned i = 0; i < 64; ++i)
    for (unsigned j = 0; j < i; ++j)
      EXPECT_TRUE(std::ranges::any_of(word_backgrounds(),
                                      [&](uint64_t b) { return ((b >> i) & 1) != ((b >> j) & 1); }))
          << i << " and " << j;
}

// ---- shapes ----

constexpr uint32_t geom = KZ_GEOM_DEFAULT;
constexpr uint64_t ones = ~uint64_t{0};

BadWord word(kz_hbm_place p, uint64_t bits = 1) { return {kz_hbm_join(p, geom), 0, bits}; }

TEST(Shape, OneWordIsACell) {
  EXPECT_EQ(shape_of(std::vector{word({.channel = 3, .row = 7}, 6), word({.channel = 3, .row = 7}, 2)}, geom),
            Shape::cell);
}

TEST(Shape, RowColumnBankChannel) {
  std::vector<BadWord> row, column, bank, channel;
  for (uint32_t i = 0; i < 32; ++i) {
    row.push_back(word({.channel = 1, .pseudo = 1, .bank = 2, .column = i, .row = 9}, ones));
    column.push_back(word({.channel = 1, .pseudo = 1, .bank = 2, .column = 4, .row = i}, ones));
    bank.push_back(word({.channel = 1, .pseudo = 1, .bank = 2, .column = i, .row = i / 2}, ones));
    channel.push_back(word({.channel = 1, .pseudo = i & 1, .bank = i % 16, .column = i, .row = i / 2}, ones));
  }
  EXPECT_EQ(shape_of(row, geom), Shape::row);
  EXPECT_EQ(shape_of(column, geom), Shape::column);
  EXPECT_EQ(shape_of(bank, geom), Shape::bank);
  EXPECT_EQ(shape_of(channel, geom), Shape::channel);
}

TEST(Shape, OneBitOverAChannelIsALane) {
  std::vector<BadWord> lane;
  for (uint32_t i = 0; i < 64; ++i)
    lane.push_back(word({.channel = 5, .pseudo = 0, .bank = i % 16, .column = i % 32, .row = i}, 1u << 13));
  EXPECT_EQ(shape_of(lane, geom), Shape::lane);
  EXPECT_EQ(shape_of(lane, std::nullopt), Shape::lane);
}

TEST(Shape, ForeignAddressesShowTheDecoder) {
  std::vector<BadWord> alias;
  for (uint64_t i = 0; i < 64; ++i) {
    uint64_t a = i * 8 + ((i & 1) << 20);
    alias.push_back({a, a, a ^ (uint64_t{1} << 20)});
  }
  EXPECT_EQ(shape_of(alias, geom, true), Shape::address_line);
  EXPECT_NE(shape_of(alias, geom, false), Shape::address_line);
}

TEST(Shape, UnrelatedWordsAreScattered) {
  std::vector<BadWord> few = {word({.channel = 1, .row = 3}), word({.channel = 6, .bank = 3, .row = 8}, 4)};
  EXPECT_EQ(shape_of(few, geom), Shape::scattered);
}

TEST(Shape, NamesThePlace) {
  EXPECT_EQ(place_text(0x40, geom), "0x40 channel 1 pc 0 bank 0 row 0 column 0");
  EXPECT_EQ(place_text(0x40, std::nullopt), "0x40");
}

}  // namespace
}  // namespace kz::memcheck
