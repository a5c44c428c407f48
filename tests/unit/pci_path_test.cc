// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of settings and of the path: a sound port with its endpoint has no finding, and each breach is found
// alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/pci/config_bytes.h"
#include "shim/pci/tree.h"

namespace kz {
namespace {

using Bytes_ = std::vector<uint8_t>;

void put(Bytes_& b, size_t at, uint32_t v) {
  for (int i = 0; i < 4; ++i) b[at + i] = static_cast<uint8_t>(v >> (8 * i));
}

// PM at 40, PCI Express at 50, L1 PM Substates at 100: 16 GT/s x8, ASPM L1, LTR, payload 256, common clock.
Bytes_ function(uint32_t ids, uint32_t express) {
  Bytes_ b(4096, 0);
  put(b, 0x00, ids), put(b, 0x04, 0x00100006), put(b, 0x34, 0x40), put(b, 0x40, 0x00035001);
  put(b, 0x50, express << 16 | 0x0010);
  put(b, 0x54, 0x00008c21);  // payload 256, extended tags, L1 accepted: 64 us
  put(b, 0x58, 0x00002120);  // payload 256, read 512, extended tags
  put(b, 0x5c, 0x00020884);  // 16 GT/s x8, L1, exit 16 us
  put(b, 0x60, 0x10840042);  // L1 enabled, common clock; 16 GT/s x8
  put(b, 0x74, 0x00000800);  // LTR supported
  put(b, 0x78, 0x00000400);  // LTR enabled
  put(b, 0x100, 0x0001001e), put(b, 0x104, 0x1f), put(b, 0x108, 0x0f);
  return b;
}

class PciPath : public testing::Test {
 protected:
  PciPath() : port(function(0x10201111, 0x42)), device(function(0x4b5a1234, 0x02)) {
    port[0x0e] = 1, put(port, 0x08, 0x06040000), put(port, 0x18, 0x00010100);
    put(port, 0x20, 0xfeb0fe00);  // memory fe000000-febfffff
    put(port, 0x24, 0x0000fff0);  // prefetchable: closed
    put(device, 0x08, 0x12000000), put(device, 0x10, 0xfe000000), put(device, 0x2c, 0x00011234);
  }
  Findings judge(bool whole = false) {
    std::vector<TreeFunction> functions(2);
    functions[0].bdf = {0, 0, 1, 0}, functions[1].bdf = {0, 1, 0, 0};
    functions[0].config = std::make_unique<BytesConfig>(port, "port");
    functions[1].config = std::make_unique<BytesConfig>(device, "device");
    functions[1].bar_sizes[0] = 0x100000;
    PciTree tree(std::move(functions));
    const TreeFunction& f = tree.functions()[1];
    EXPECT_EQ(f.above, &tree.functions()[0]);
    if (whole) return check_function(f);
    Findings out = check_settings(f);
    std::ranges::move(check_path(f), std::back_inserter(out));
    return out;
  }
  void expect_one(uint32_t offset, bool warning, const std::string& text) {
    auto found = judge();
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? "nothing found"
                                                  : found[0].text + " / " + found.back().text);
    EXPECT_EQ(found[0].offset, offset);
    EXPECT_EQ(found[0].warning, warning);
    EXPECT_THAT(found[0].text, testing::HasSubstr(text));
    EXPECT_THAT(found[0].rule, testing::StartsWith("PCIe r"));
  }
  Bytes_ port, device;
};

TEST_F(PciPath, SoundPathHasNoFindings) {
  auto found = judge(true);
  EXPECT_TRUE(found.empty()) << found[0].text;
}

TEST_F(PciPath, PayloadAboveThePorts) {
  put(port, 0x58, 0x00002100);
  expect_one(0x58, false, "malformed");
}
TEST_F(PciPath, PayloadBelowThePortsWithLongReads) {
  put(device, 0x58, 0x00002100);
  expect_one(0x58, true, "sends up to 256 bytes");
}
TEST_F(PciPath, ShortReadsMakeASmallPayloadSafe) {
  put(device, 0x58, 0x00000100);
  EXPECT_TRUE(judge().empty());
}
TEST_F(PciPath, PayloadBeyondTheFunctionsOwn) {
  put(device, 0x54, 0x00008c20);
  expect_one(0x58, false, "above Device Capabilities");
}
TEST_F(PciPath, EndsOfTheLinkDisagree) {
  put(device, 0x60, 0x10830042);
  expect_one(0x62, false, "at its other end");
}
TEST_F(PciPath, LinkBelowWhatBothCan) {
  put(device, 0x60, 0x10440042), put(port, 0x60, 0x10440042);
  expect_one(0x62, true, "both ends can 16 GT/s x8");
}
TEST_F(PciPath, LinkBelowWhatOnlyOneCanIsFine) {
  put(device, 0x60, 0x10440042), put(port, 0x60, 0x10440042), put(port, 0x5c, 0x00020844);
  EXPECT_TRUE(judge().empty());
}
TEST_F(PciPath, AspmThatThePortDoesNotSupport) {
  put(port, 0x5c, 0x00020084), put(port, 0x60, 0x10840040);
  expect_one(0x60, false, "does not support");
}
TEST_F(PciPath, AspmAtOneEndOnly) {
  put(port, 0x60, 0x10840040);
  expect_one(0x60, true, "L1 is enabled here and off");
}
TEST_F(PciPath, AspmBeyondTheFunctionsOwn) {
  put(device, 0x60, 0x10840043), put(port, 0x60, 0x10840042);
  expect_one(0x60, true, "ASPM is set to L0s and L1");
}
TEST_F(PciPath, ClocksDisagree) {
  put(port, 0x60, 0x10840002);
  expect_one(0x60, true, "Common Clock");
}
TEST_F(PciPath, ExitLatencyAboveWhatIsAccepted) {
  put(device, 0x54, 0x00008421);  // 4 us
  expect_one(0x54, true, "takes up to 16 us");
}
TEST_F(PciPath, LtrNotEnabledAbove) {
  put(port, 0x78, 0);
  expect_one(0x78, false, "LTR is not enabled there");
}
TEST_F(PciPath, LtrWithoutSupport) {
  put(device, 0x74, 0);
  expect_one(0x78, true, "without LTR Mechanism Supported");
}
TEST_F(PciPath, SubstateAtOneEndOnly) {
  put(port, 0x108, 0x07);
  expect_one(0x108, false, "ASPM L1.1 is enabled here");
}
TEST_F(PciPath, TenBitTagsThatTheRootCannotTake) {
  put(device, 0x74, 0x00020800), put(device, 0x78, 0x00001400);
  expect_one(0x78, false, "10-bit tags");
  put(port, 0x74, 0x00010800);
  EXPECT_TRUE(judge().empty());
}
TEST_F(PciPath, BridgeMayNotForward) {
  put(port, 0x04, 0x00100002);
  expect_one(0x04, false, "may not forward");
}
TEST_F(PciPath, BarOutsideTheWindow) {
  put(device, 0x10, 0xfec00000);
  expect_one(0x10, false, "outside the memory windows");
}
TEST_F(PciPath, BarThatEndsOutsideTheWindow) {
  put(port, 0x20, 0xfdf0fdf0);
  put(device, 0x10, 0xfdf80000);
  expect_one(0x10, false, "outside the memory windows");
}
TEST_F(PciPath, BarInThePrefetchableWindow) {
  put(port, 0x24, 0x00110001), put(port, 0x28, 0x40), put(port, 0x2c, 0x40);  // 40:00000000-40:001fffff
  put(device, 0x10, 0x0000000c), put(device, 0x14, 0x40);
  EXPECT_TRUE(judge().empty());
  put(device, 0x14, 0x41);
  expect_one(0x10, false, "outside the memory windows");
}
TEST_F(PciPath, ALostFunctionIsOneFinding) {
  device.assign(4096, 0xff);
  auto found = judge(true);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].text, testing::HasSubstr("all ones"));
}

// Counts and sizes that the function itself limits.
TEST_F(PciPath, MoreVirtualFunctionsThanThereAre) {
  put(device, 0x100, 0x20010010 & 0x000fffffu), put(device, 0x104, 0), put(device, 0x108, 0);
  put(port, 0x100, 0);
  put(device, 0x10c, 0x00080008), put(device, 0x110, 9);
  expect_one(0x110, false, "NumVFs");
}
TEST_F(PciPath, BarSizeThatIsNotSupported) {
  put(port, 0x100, 0), put(device, 0x100, 0x00010015), put(device, 0x104, 0x00001000),
      put(device, 0x108, 0x00000920);
  expect_one(0x108, false, "set to 512 MB");
}

}  // namespace
}  // namespace kz
