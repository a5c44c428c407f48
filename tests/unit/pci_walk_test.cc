// SPDX-License-Identifier: GPL-2.0-or-later
// The capability walk: built and mutated configuration spaces. Right values come from the layout rules of
// PCIe r6.0, sections 7.5.1.1.11, 7.6.1 and 7.6.3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/fuzz.h"
#include "shim/pci/rules.h"

namespace kz {
namespace {

using Kind = ChainFault::Kind;

// A type 0 function with PM at 40, MSI at 50, PCI Express at 70; AER at 100, DSN at 140.
struct Space {
  std::vector<uint8_t> b = std::vector<uint8_t>(4096, 0);

  explicit Space(size_t size = 4096) {
    put16(0x00, 0x1234);
    put16(0x02, 0x4b5a);
    put16(0x06, 0x0010);
    put16(0x0a, 0x1200);
    b[0x34] = 0x40;
    standard(0x40, 0x01, 0x50);
    standard(0x50, 0x05, 0x70);
    standard(0x70, 0x10, 0);
    put16(0x72, 0x0002);
    extended(0x100, 0x0001, 2, 0x140);
    extended(0x140, 0x0003, 1, 0);
    b.resize(size);
  }
  void put16(size_t at, uint16_t v) {
    b[at] = static_cast<uint8_t>(v);
    b[at + 1] = static_cast<uint8_t>(v >> 8);
  }
  void standard(size_t at, uint8_t id, uint8_t next) {
    b[at] = id;
    b[at + 1] = next;
  }
  void extended(size_t at, uint16_t id, uint16_t version, uint16_t next) {
    put16(at, id);
    put16(at + 2, static_cast<uint16_t>(version | next << 4));
  }
  CapabilityWalk walk() const {
    BytesConfig config(b, "test");
    return walk_capabilities(config);
  }
};

std::vector<std::pair<unsigned, unsigned>> places(const CapabilityWalk& w) {
  std::vector<std::pair<unsigned, unsigned>> out;
  for (const auto& c : w.found) out.emplace_back(c.id | (c.extended ? 0x10000u : 0), c.offset);
  return out;
}

using Places = std::vector<std::pair<unsigned, unsigned>>;
const Places kStandardThree = {{0x01, 0x40}, {0x05, 0x50}, {0x10, 0x70}};

TEST(PciWalk, SoundChains) {
  auto w = Space().walk();
  Places all = kStandardThree;
  all.insert(all.end(), {{0x10001, 0x100}, {0x10003, 0x140}});
  EXPECT_EQ(places(w), all);
  EXPECT_TRUE(w.faults.empty());
  EXPECT_TRUE(w.complete);
  EXPECT_EQ(w.found[3].version, 2);
}

TEST(PciWalk, NoCapabilityListBit) {
  Space s;
  s.put16(0x06, 0);
  s.put16(0x100, 0), s.put16(0x102, 0);
  auto w = s.walk();
  EXPECT_TRUE(w.found.empty());
  EXPECT_TRUE(w.complete);
}

TEST(PciWalk, StandardLoops) {
  for (uint8_t target : {0x40, 0x50, 0x70}) {  // also a capability that points to itself
    Space s;
    s.b[0x71] = target;
    auto w = s.walk();
    ASSERT_EQ(w.faults.size(), 1u);
    EXPECT_EQ(w.faults[0].kind, Kind::loop);
    EXPECT_EQ(w.faults[0].at, 0x71);
    EXPECT_EQ(w.faults[0].target, target);
    EXPECT_FALSE(w.faults[0].extended);
    EXPECT_EQ(w.found.size(), 5u);
    EXPECT_TRUE(w.complete) << "a loop is the device's fault, not the reader's";
  }
}

TEST(PciWalk, StandardMisalignedAndOutOfRange) {
  struct {
    uint8_t pointer;
    Kind kind;
  } cases[] = {{0x41, Kind::misaligned},
               {0x52, Kind::misaligned},
               {0x3c, Kind::out_of_range},
               {0x04, Kind::out_of_range}};
  for (auto c : cases) {
    Space s;
    s.b[0x34] = c.pointer;
    auto w = s.walk();
    ASSERT_EQ(w.faults.size(), 1u) << int{c.pointer};
    EXPECT_EQ(w.faults[0].kind, c.kind) << int{c.pointer};
    EXPECT_EQ(w.faults[0].at, 0x34);
    EXPECT_EQ(w.found.size(), 2u) << "the extended chain is walked all the same";
  }
}

TEST(PciWalk, ExtendedFaults) {
  struct {
    uint16_t next;
    Kind kind;
  } cases[] = {{0x100, Kind::loop},
               {0x140, Kind::loop},
               {0x142, Kind::misaligned},
               {0x0fc, Kind::out_of_range},
               {0x040, Kind::out_of_range}};
  for (auto c : cases) {
    Space s;
    s.extended(0x140, 3, 1, c.next);
    auto w = s.walk();
    ASSERT_EQ(w.faults.size(), 1u) << c.next;
    EXPECT_EQ(w.faults[0].kind, c.kind) << c.next;
    EXPECT_TRUE(w.faults[0].extended);
    EXPECT_EQ(w.faults[0].at, 0x140);
    EXPECT_EQ(w.faults[0].target, c.next);
    EXPECT_EQ(w.found.size(), 5u);
  }
}

TEST(PciWalk, ExtendedAtTheVeryEndIsInRange) {
  Space s;
  s.extended(0x140, 3, 1, 0xffc);
  s.extended(0xffc, 0x18, 1, 0);
  auto w = s.walk();
  EXPECT_TRUE(w.faults.empty());
  EXPECT_EQ(w.found.back().offset, 0xffc);
}

TEST(PciWalk, AllOnesInsideAChain) {
  Space s;
  s.standard(0x70, 0xff, 0xff);
  for (int i = 0; i < 4; ++i) s.b[0x140 + i] = 0xff;
  auto w = s.walk();
  ASSERT_EQ(w.faults.size(), 2u);
  EXPECT_EQ(w.faults[0].kind, Kind::all_ones);
  EXPECT_EQ(w.faults[1].kind, Kind::all_ones);
}

TEST(PciWalk, NullCapabilitiesAreLegal) {
  Space s;
  s.extended(0x140, 0, 0, 0x200);  // 7.9.28
  s.extended(0x200, 3, 1, 0);
  auto w = s.walk();
  EXPECT_TRUE(w.faults.empty());
  EXPECT_EQ(w.found.back().offset, 0x200);
}

TEST(PciWalk, UnprivilegedReaderSeesTruncationNotAFault) {
  auto w = Space(64).walk();
  ASSERT_EQ(w.faults.size(), 1u);
  EXPECT_EQ(w.faults[0].kind, Kind::truncated);
  EXPECT_FALSE(w.complete);
  EXPECT_TRUE(check_chains(w).empty()) << "what cannot be seen is not held against the device";
}

TEST(PciWalk, ExpressFunctionWithoutExtendedSpaceIsIncomplete) {
  auto w = Space(256).walk();
  EXPECT_EQ(places(w), kStandardThree);
  EXPECT_TRUE(w.faults.empty());
  EXPECT_FALSE(w.complete);
}

TEST(PciWalk, ConventionalFunctionOf256BytesIsComplete) {
  Space s(256);
  s.standard(0x70, 0x11, 0);
  EXPECT_TRUE(s.walk().complete);
}

TEST(PciWalk, LostFunctionAndShortInput) {
  for (size_t size : {0u, 1u, 63u}) EXPECT_FALSE(Space(size).walk().complete);
  Space s;
  std::fill(s.b.begin(), s.b.end(), 0xff);
  auto w = s.walk();
  EXPECT_TRUE(w.found.empty());
  EXPECT_TRUE(w.faults.empty());
  EXPECT_FALSE(w.complete);
}

TEST(PciWalk, VirtualFunctionIdsOfAllOnesAreNoLoss) {
  Space s;
  s.put16(0, 0xffff), s.put16(2, 0xffff);
  EXPECT_EQ(s.walk().found.size(), 5u);
}

TEST(PciWalk, CardBusBridgeKeepsItsPointerAt14) {
  Space s;
  s.b[0x0e] = 2;
  s.b[0x34] = 0xee;  // a CardBus register, no pointer
  s.b[0x14] = 0x40;
  auto w = s.walk();
  EXPECT_TRUE(w.faults.empty());
  EXPECT_EQ(w.found.size(), 5u);
}

// A chain in random order through all 48 places is walked whole; the longest legal one.
TEST(PciWalk, LongestStandardChain) {
  std::mt19937 rng(7);
  std::vector<uint8_t> order;
  for (int at = 0x40; at < 0x100; at += 4) order.push_back(static_cast<uint8_t>(at));
  std::shuffle(order.begin(), order.end(), rng);
  Space s;
  s.b[0x34] = order[0];
  for (size_t i = 0; i < order.size(); ++i)
    s.standard(order[i], 0x09, i + 1 < order.size() ? order[i + 1] : uint8_t{0});
  auto w = s.walk();
  EXPECT_TRUE(w.faults.empty());
  ASSERT_EQ(w.found.size(), 48u + 2u);
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(w.found[i].offset, order[i]);
}

// Whatever the bytes are: the walk ends, reads inside only (BytesConfig throws otherwise), and every rule
// returns.
TEST(PciWalk, RandomBitFlipsNeverEscape) {
  std::mt19937_64 rng(20240601);
  for (int round = 0; round < 20000; ++round) {
    constexpr size_t sizes[] = {64, 256, 4096, 272, 65, 300};
    Space s(sizes[rng() % std::size(sizes)]);
    size_t flips = 1 + rng() % 40;
    for (size_t i = 0; i < flips; ++i) s.b[rng() % s.b.size()] ^= static_cast<uint8_t>(1u << (rng() % 8));
    ASSERT_NO_THROW(fuzz_config_walk(s.b)) << "round " << round;
  }
}

TEST(PciWalk, RandomBytesNeverEscape) {
  std::mt19937_64 rng(99);
  for (int round = 0; round < 3000; ++round) {
    std::vector<uint8_t> bytes(rng() % 4200);
    for (auto& byte : bytes) byte = static_cast<uint8_t>(rng());
    if (bytes.size() > 7) bytes[6] |= 0x10;
    ASSERT_NO_THROW(fuzz_config_walk(bytes)) << "round " << round;
  }
}

TEST(PciConfigBytes, ChecksAccesses) {
  BytesConfig config(std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7, 8}, "eight");
  EXPECT_EQ(config.read32(4), 0x08070605u);
  EXPECT_EQ(config.read16(2), 0x0403);
  auto code = [](auto call) {
    try {
      call();
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::status;
  };
  EXPECT_EQ(code([&] { config.read32(2); }), Errc::usage);
  EXPECT_EQ(code([&] { config.read32(8); }), Errc::usage);
  EXPECT_EQ(code([&] { config.read8(0xffffffff); }), Errc::usage);
  EXPECT_EQ(code([&] { config.read16(0xfffffffe); }), Errc::usage);
  EXPECT_EQ(code([&] { config.write8(0, 1); }), Errc::unsupported);
  BytesConfig writable(std::vector<uint8_t>(8), "eight", true);
  writable.write32(4, 0xa1b2c3d4);
  EXPECT_EQ(writable.read8(7), 0xa1);
}

TEST(PciNamesOfCapabilities, KnownAndUnknown) {
  EXPECT_EQ(capability_name(0x10, false), "PCI Express");
  EXPECT_EQ(capability_name(0x11, false), "MSI-X");
  EXPECT_EQ(capability_name(0x15, false), "Flattening Portal Bridge");
  EXPECT_EQ(capability_name(0x01, true), "Advanced Error Reporting");
  EXPECT_EQ(capability_name(0x2e, true), "Data Object Exchange");
  EXPECT_EQ(capability_name(0x0123, true), "unknown extended capability 0x0123");
  EXPECT_EQ(capability_name(0xfe, false), "unknown capability 0xfe");
}

}  // namespace
}  // namespace kz
