// SPDX-License-Identifier: GPL-2.0-or-later
// Each rule catches its own breach, and only that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/pci/config_bytes.h"
#include "shim/pci/rules.h"

namespace kz {
namespace {

// An endpoint that breaks no rule: PM at 40, PCI Express 50, MSI-X a0; AER 100, DSN 140; BAR0 64 bits, BAR2
// 32, BAR4 I/O.
class PciRules : public testing::Test {
 protected:
  PciRules() : b(4096, 0) {
    put(0x00, 0x4b5a1234), put(0x04, 0x00100006), put(0x08, 0x12000001);
    put(0x10, 0x0000000c), put(0x14, 0x00000040), put(0x18, 0xfe000000), put(0x20, 0x0000c001);
    put(0x2c, 0x00011234), put(0x34, 0x40), put(0x3c, 0x000001ff);
    put(0x40, 0x00035001);
    put(0x50, 0x0002a010), put(0x50 + 0x0c, 0x00400104), put(0x50 + 0x10, 0x11040000);
    put(0xa0, 0x80070011), put(0xa4, 0x00000002), put(0xa8, 0x00002002);
    put(0x100, 0x14020001), put(0x140, 0x00010003), put(0x144, 0x11223344), put(0x148, 0x55667788);
  }
  void put(size_t at, uint32_t v) {
    for (int i = 0; i < 4; ++i) b[at + i] = static_cast<uint8_t>(v >> (8 * i));
  }
  Findings all(bool vf = false) {
    BytesConfig c(b, "rules");
    auto walk = walk_capabilities(c);
    Findings out;
    for (auto more : {check_header(c, walk, vf), check_chains(walk), check_duplicates(walk),
                      check_required(c, walk, vf), check_bars(c, walk), check_msix(c, walk, sizes, vf),
                      check_link(c, walk), check_serial(c, walk), check_aer_status(c, walk)})
      out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  // Exactly one finding, at `offset`, with that gravity and text.
  void expect_one(uint32_t offset, bool warning, const std::string& text) {
    auto found = all();
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? "nothing found" : found.back().text);
    EXPECT_EQ(found[0].offset, offset);
    EXPECT_EQ(found[0].warning, warning);
    EXPECT_THAT(found[0].text, testing::HasSubstr(text));
    EXPECT_THAT(found[0].rule, testing::StartsWith("PC"));
  }
  std::vector<uint8_t> b;
  std::array<uint64_t, 6> sizes{0x1000, 0, 0x4000, 0, 0, 0};
};

TEST_F(PciRules, SoundFunctionHasNoFindings) { EXPECT_TRUE(all().empty()) << all()[0].text; }

TEST_F(PciRules, VendorIdNotAssigned) {
  b[0] = b[1] = 0;
  expect_one(0x00, false, "vendor id");
}
TEST_F(PciRules, VirtualFunctionMayHaveIdsOfOnes) {
  put(0, 0xffffffff);
  EXPECT_FALSE(all(false).empty());
  EXPECT_TRUE(all(true).empty());
}
TEST_F(PciRules, HeaderLayout) {
  b[0x0e] = 0x03;
  auto found = all();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].offset, 0x0eu);
}
TEST_F(PciRules, BridgeHeaderOnAnEndpoint) {
  b[0x0e] = 0x01;
  bool seen = false;
  for (const auto& f : all()) seen = seen || f.rule == "PCIe r6.0 7.5.3.2";
  EXPECT_TRUE(seen);
}
TEST_F(PciRules, ReservedClassIsOddOnly) {
  b[0x0b] = 0x20;
  expect_one(0x08, true, "base class");
}
TEST_F(PciRules, UnassignedClassIsFine) {
  b[0x0b] = b[0x0a] = 0xff;
  EXPECT_TRUE(all().empty());
}
TEST_F(PciRules, InterruptPin) {
  b[0x3d] = 5;
  expect_one(0x3d, false, "interrupt pin");
}
TEST_F(PciRules, SubsystemVendor) {
  put(0x2c, 0);
  expect_one(0x2c, true, "subsystem vendor");
}
TEST_F(PciRules, ReservedMemoryType) {
  b[0x18] = 0x06;
  expect_one(0x18, false, "BAR2 has a reserved memory type");
}
TEST_F(PciRules, IoBarReservedBit) {
  b[0x20] = 0x03;
  expect_one(0x20, false, "BAR4");
}
TEST_F(PciRules, LastBarOf64Bits) {
  put(0x24, 0x0000000c);
  expect_one(0x24, false, "BAR5 is 64 bits wide, but the last one");
}
TEST_F(PciRules, NoPowerManagement) {
  b[0x40] = 0x09;
  expect_one(0x34, false, "Power Management");
}
TEST_F(PciRules, IntegratedEndpointWithoutPowerManagementIsOddOnly) {
  b[0x40] = 0x09;
  b[0x52] = 0x92;
  expect_one(0x34, true, "Power Management");
}
TEST_F(PciRules, InterruptsWithoutMessages) {
  b[0xa0] = 0x09;
  expect_one(0x3d, false, "neither MSI nor MSI-X");
}
TEST_F(PciRules, BrokenChainHidesNothing) {
  b[0x41] = 0x40;  // PM points to itself: PCI Express and MSI-X are not found, and not called missing
  expect_one(0x41, false, "leads back");
}
TEST_F(PciRules, SecondMsix) {
  b[0xa1] = 0xc0;
  put(0xc0, 0x80070011), put(0xc4, 2), put(0xc8, 0x2002);
  expect_one(0xc0, false, "second MSI-X");
}
TEST_F(PciRules, SecondAerIsOddOnly) {
  put(0x140, 0x20010003);
  put(0x200, 0x00020001);
  expect_one(0x200, true, "second Advanced Error Reporting");
}
TEST_F(PciRules, SeveralVendorCapabilitiesAreFine) {
  b[0xa1] = 0xc0, b[0xc0] = 0x09, b[0xc1] = 0xd0, b[0xd0] = 0x09;
  EXPECT_TRUE(all().empty());
}
TEST_F(PciRules, MsixTableInReservedBar) {
  put(0xa4, 0x00000006);
  expect_one(0xa4, false, "reserved");
}
TEST_F(PciRules, MsixTableInUpperHalf) {
  put(0xa4, 0x00000001);
  expect_one(0xa4, false, "BAR1, which is no BAR");
}
TEST_F(PciRules, MsixTableInIoBar) {
  put(0xa4, 0x00000004);
  expect_one(0xa4, false, "I/O BAR");
}
TEST_F(PciRules, MsixTableBeyondItsBar) {
  put(0xa4, 0x00003f90 | 2);  // 8 vectors of 16 bytes from 0x3f90 end at 0x4010
  expect_one(0xa4, false, "ends at 0x4010");
}
TEST_F(PciRules, MsixTableThatEndsWithItsBarIsFine) {
  put(0xa4, 0x00003f80 | 2);
  EXPECT_TRUE(all().empty());
}
TEST_F(PciRules, MsixOverlap) {
  put(0xa8, 0x00000072);  // pending bits inside the last vector
  expect_one(0xa8, false, "overlap");
}
TEST_F(PciRules, MsixSharesPageWithVirtio) {
  put(0, 0x10421af4);
  b[0xa1] = 0xc0;
  put(0xc0, 0x01100009), put(0xc4, 2), put(0xc8, 0x0c00), put(0xcc, 0x38);  // common cfg in BAR2 at c00
  expect_one(0xa4, false, "shares a 4 KiB page");
  put(0xc8, 0x1000);
  EXPECT_TRUE(all().empty());
}
TEST_F(PciRules, LinkWiderThanItsCapability) {
  put(0x50 + 0x10, 0x12040000);
  expect_one(0x62, false, "x32, beyond its capability of x16");
}
TEST_F(PciRules, LinkFasterThanItsCapability) {
  put(0x50 + 0x10, 0x11050000);
  expect_one(0x62, false, "32 GT/s, beyond its capability of 16");
}
TEST_F(PciRules, LinkWidthThatDoesNotExist) {
  put(0x50 + 0x10, 0x10340000 | 0x00040000);
  expect_one(0x62, false, "is no link width");
}
TEST_F(PciRules, LinkDownSaysNothing) {
  put(0x50 + 0x10, 0);
  EXPECT_TRUE(all().empty());
}
TEST_F(PciRules, SerialNumberOfZeroAndOnes) {
  put(0x144, 0), put(0x148, 0);
  expect_one(0x140, true, "Serial Number");
  put(0x144, ~0u), put(0x148, ~0u);
  expect_one(0x140, true, "Serial Number");
}
TEST_F(PciRules, SerialNumberIsReadOnlyWhereItIsWhole) {
  auto serial = [&] {
    BytesConfig c(b, "rules");
    return serial_of(c);
  };
  EXPECT_EQ(serial(), "55-66-77-88-11-22-33-44");  // high byte first, as lspci prints it
  put(0x144, 0), put(0x148, 0);
  EXPECT_EQ(serial(), "");
  put(0x100, 0xffc20001), put(0xffc, 0x00010003);  // its second half would lie past the end
  EXPECT_EQ(serial(), "");
}
TEST_F(PciRules, AerStatus) {
  put(0x104, 1u << 18);  // malformed TLP
  expect_one(0x104, true, "uncorrectable");
  put(0x108, 1u << 18);  // masked
  EXPECT_TRUE(all().empty());
  put(0x104, 1u << 20);  // unsupported request: enumeration leaves it
  EXPECT_TRUE(all().empty());
  put(0x110, 1u << 6);  // bad TLP
  expect_one(0x110, true, "correctable");
}

// ---- against the kernel's record ----

class PciAgainstSysfs : public PciRules {
 protected:
  PciAgainstSysfs() {
    info.vendor = 0x1234, info.device = 0x4b5a, info.revision = 1, info.class_code = 0x120000;
    info.subsystem_vendor = 0x1234, info.subsystem = 1;
    info.resources = {{0x4000000000, 0x4000000fff, 0x140204},
                      {},
                      {0xfe000000, 0xfe003fff, 0x200},
                      {},
                      {0xc000, 0xc01f, 0x101},
                      {},
                      {}};
    info.enabled = 1;
    info.msi_irqs = {30, 31};
    b[0xa3] = 0x80;
  }
  Findings compare() {
    BytesConfig c(b, "rules");
    auto walk = walk_capabilities(c);
    Findings out;
    for (auto more : {compare_ids(c, info), compare_bars(c, walk, info), compare_enables(c, walk, info)})
      out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  void expect_one(uint32_t offset, bool warning = false) {
    auto found = compare();
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? "nothing found" : found.back().text);
    EXPECT_EQ(found[0].offset, offset) << found[0].text;
    EXPECT_EQ(found[0].warning, warning);
  }
  PciInfo info;
};

TEST_F(PciAgainstSysfs, SameHasNoFindings) { EXPECT_TRUE(compare().empty()) << compare()[0].text; }
TEST_F(PciAgainstSysfs, Ids) {
  info.device = 0x4b5b;
  expect_one(0x02);
  info.device = 0x4b5a, info.revision = 2;
  expect_one(0x08);
  info.revision = 1, info.subsystem = 7;
  expect_one(0x2e);
}
TEST_F(PciAgainstSysfs, ClassMayBeCorrectedByTheKernel) {
  info.class_code = 0x118000;
  expect_one(0x09, true);
}
TEST_F(PciAgainstSysfs, LostBar) {
  put(0x14, 0);  // P11: the upper half is gone after a reset
  expect_one(0x10);
}
TEST_F(PciAgainstSysfs, BarOfAnotherKind) {
  put(0x18, 0xfe01);
  expect_one(0x18);
}
TEST_F(PciAgainstSysfs, ResourcesThatDoNotComeFromTheBar) {
  put(0x18, 0);
  info.resources[2].flags |= 0x10;  // legacy address, fixed by the kernel
  EXPECT_TRUE(compare().empty());
  info.resources[2] = {0xfe000000, 0xfe003fff, 0x200 | PciResource::kUnset};
  EXPECT_TRUE(compare().empty());
}
TEST_F(PciAgainstSysfs, DecodingOff) {
  b[0x04] = 0x04;
  expect_one(0x04);
  info.class_code = 0x030000, b[0x0b] = 0x03;  // the VGA arbiter may do this
  EXPECT_TRUE(compare().empty());
}
TEST_F(PciAgainstSysfs, DecodingOffOfADisabledFunctionIsFine) {
  b[0x04] = 0;
  info.enabled = 0;
  EXPECT_TRUE(compare().empty());
}
TEST_F(PciAgainstSysfs, MessageInterruptsLost) {
  b[0xa3] = 0x00;  // P10: MSI-X enable is off after a reset
  expect_one(0x34);
}
TEST_F(PciAgainstSysfs, VirtualFunction) {
  info.virtual_function = true;
  put(0x00, ~0u), put(0x04, 0x00100000), put(0x2c, 0);
  for (int at = 0x10; at <= 0x24; at += 4) put(at, 0);
  EXPECT_TRUE(compare().empty()) << compare()[0].text;
}

}  // namespace
}  // namespace kz
