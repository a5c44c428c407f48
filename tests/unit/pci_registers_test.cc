// SPDX-License-Identifier: GPL-2.0-or-later
// The tables of registers are sound, and known bits have the names that the specification gives them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shim/pci/config_bytes.h"
#include "shim/pci/register_text.h"
#include "shim/pci/registers.h"

namespace kz {
namespace {

std::vector<const StructureLayout*> every_layout() {
  std::vector<const StructureLayout*> out{&endpoint_header(), &bridge_header()};
  for (const auto& l : standard_layouts()) out.push_back(&l);
  for (const auto& l : extended_layouts()) out.push_back(&l);
  return out;
}

std::string name_of(const StructureLayout& l) {
  return capability_name(l.id, l.extended) + " " + std::string(l.section);
}

TEST(PciRegisterTables, FieldsFitAndDoNotOverlap) {
  size_t fields = 0;
  for (const auto* layout : every_layout())
    for (const auto& reg : layout->registers) {
      uint64_t taken = 0;
      std::set<std::string_view> names;
      for (const auto& f : reg.fields) {
        ++fields;
        ASSERT_LE(f.lsb, f.msb) << name_of(*layout) << ": " << reg.name << ": " << f.name;
        EXPECT_LT(f.msb, reg.bytes * 8) << name_of(*layout) << ": " << reg.name << ": " << f.name;
        for (unsigned bit = f.lsb; bit <= f.msb; ++bit) {
          EXPECT_EQ(taken >> bit & 1, 0u)
              << name_of(*layout) << ": " << reg.name << ": " << f.name << " bit " << bit;
          taken |= uint64_t{1} << bit;
        }
        EXPECT_TRUE(names.insert(f.name).second) << reg.name << " has two fields " << f.name;
      }
    }
  EXPECT_GT(fields, 500u);
}

TEST(PciRegisterTables, RegistersThatAreAlwaysThereDoNotOverlap) {
  for (const auto* layout : every_layout()) {
    std::set<unsigned> bytes;
    for (const auto& reg : layout->registers) {
      if (reg.there || reg.count) continue;
      for (unsigned i = 0; i < reg.bytes; ++i)
        EXPECT_TRUE(bytes.insert(reg.offset + i).second) << name_of(*layout) << ": " << reg.name;
    }
  }
}

TEST(PciRegisterTables, OneLayoutAnIdAndASection) {
  std::set<std::pair<bool, uint16_t>> ids;
  for (bool extended : {false, true})
    for (const auto& l : extended ? extended_layouts() : standard_layouts()) {
      EXPECT_EQ(l.extended, extended);
      EXPECT_TRUE(ids.emplace(extended, l.id).second) << l.id;
      EXPECT_THAT(std::string(l.section), testing::MatchesRegex("PCIe r[56]\\.0 [0-9.]+")) << l.id;
      EXPECT_EQ(find_layout(l.id, extended), &l);
    }
}

// An endpoint: MSI at 40 (64 bits, masks), PCI Express 60; Resizable BAR 100, L1 PM Substates 120.
class PciRegisters : public testing::Test {
 protected:
  PciRegisters() : b(4096, 0) {
    put(0x00, 0x4b5a1234), put(0x04, 0x00100006), put(0x10, 0xfe00000c), put(0x14, 0x00000040),
        put(0x34, 0x40);
    put(0x40, 0x01866005), put(0x44, 0xfee00000), put(0x48, 1), put(0x4c, 0x4021), put(0x50, 0x2),
        put(0x54, 0x4);
    put(0x60, 0x00020010), put(0x6c, 0x00433485), put(0x70, 0x10430140);
    put(0x100, 0x12010015), put(0x104, 0x00001000), put(0x108, 0x00000820);
    put(0x120, 0x0001001e), put(0x124, 0x0028001f), put(0x128, 0x40a0000f);
  }
  void put(size_t at, uint32_t v) {
    for (int i = 0; i < 4; ++i) b[at + i] = static_cast<uint8_t>(v >> (8 * i));
  }
  std::vector<DecodedStructure> decode() {
    BytesConfig c(b, "registers");
    return decode_function(c, walk_capabilities(c));
  }
  std::string text(std::string_view structure, std::string_view reg, std::string_view field) {
    for (const auto& s : decode())
      if (s.name == structure)
        if (const auto* r = s.find(reg))
          if (const auto* f = r->field(field)) return f->text;
    return "(not there)";
  }
  std::vector<ConfigChange> diff(const std::vector<uint8_t>& after) {
    BytesConfig x(b, "before"), y(after, "after");
    return diff_config(x, y);
  }
  std::vector<uint8_t> b;
};

TEST_F(PciRegisters, NamesKnownBits) {
  EXPECT_EQ(text("Header, type 0", "Command", "Bus Master Enable"), "+");
  EXPECT_EQ(text("Header, type 0", "Command", "Interrupt Disable"), "-");
  EXPECT_EQ(text("MSI", "Message Control", "Multiple Message Capable"), "8");
  EXPECT_EQ(text("MSI", "Message Address", "Address"), "0x00000001fee00000");
  EXPECT_EQ(text("MSI", "Message Data", "Data"), "0x4021");
  EXPECT_EQ(text("MSI", "Mask Bits", "Mask"), "0x00000002");
  EXPECT_EQ(text("MSI", "Pending Bits", "Pending"), "0x00000004");
  EXPECT_EQ(text("PCI Express", "Link Capabilities", "Max Link Speed"), "32 GT/s");
  EXPECT_EQ(text("PCI Express", "Link Capabilities", "Maximum Link Width"), "x8");
  EXPECT_EQ(text("PCI Express", "Link Capabilities", "ASPM Support"), "L0s");
  EXPECT_EQ(text("PCI Express", "Link Status", "Current Link Speed"), "8 GT/s");
  EXPECT_EQ(text("PCI Express", "Link Status", "Negotiated Link Width"), "x4");
  EXPECT_EQ(text("Resizable BAR", "Resizable BAR Capability 0", "Sizes"), "256 MB");
  EXPECT_EQ(text("Resizable BAR", "Resizable BAR Control 0", "BAR Size"), "256 MB");
  // 160 << (5 * 2): 7.8.3.3 with the scale of 7.8.2.2
  EXPECT_EQ(text("L1 PM Substates", "L1 PM Substates Control 1", "LTR_L1.2_THRESHOLD"), "163840 ns");
}

TEST_F(PciRegisters, UpperHalfOfABarIsNoBar) {
  EXPECT_EQ(text("Header, type 0", "BAR 0", "Type"), "64-bit");
  EXPECT_EQ(text("Header, type 0", "BAR 1 upper half", "Address 63:32"), "0x00000040");
  EXPECT_EQ(text("Header, type 0", "BAR 1", "Type"), "(not there)");
  EXPECT_EQ(text("Header, type 0", "BAR 2", "Type"), "32-bit");
}

TEST_F(PciRegisters, RegistersThatTheFunctionHasNotAreLeftOut) {
  EXPECT_EQ(text("PCI Express", "Slot Status", "Presence Detect State"), "(not there)");
  put(0x60, 0x01420010);  // a root port with a slot
  put(0x78, 0x00400000);
  EXPECT_EQ(text("PCI Express", "Slot Status", "Presence Detect State"), "+");
  put(0x60, 0x00910010);  // version 1, an integrated endpoint: no link
  EXPECT_EQ(text("PCI Express", "Link Status", "Current Link Speed"), "(not there)");
  EXPECT_EQ(text("PCI Express", "Device Control 2", "LTR Mechanism Enable"), "(not there)");
}

TEST_F(PciRegisters, Msi32HasItsDataElsewhere) {
  put(0x40, 0x00066005);
  put(0x48, 0x7777);
  EXPECT_EQ(text("MSI", "Message Data", "Data"), "0x7777");
  EXPECT_EQ(text("MSI", "Mask Bits", "Mask"), "(not there)");
}

TEST_F(PciRegisters, ReservedValuesAreSaidToBe) {
  put(0x6c, 0x0000000f);
  EXPECT_EQ(text("PCI Express", "Link Capabilities", "Max Link Speed"), "reserved (15)");
}

TEST_F(PciRegisters, ACutStructureSaysSo) {
  b.resize(256);
  b.resize(0x6e);
  bool cut = false;
  for (const auto& s : decode()) cut = cut || (s.name == "PCI Express" && s.cut);
  EXPECT_TRUE(cut);
}

TEST_F(PciRegisters, EveryHostileByteDecodesWithinItsBounds) {
  for (unsigned fill : {0xffu, 0x00u, 0x10u, 0x55u, 0xfcu})
    for (size_t size : {64u, 68u, 256u, 272u, 4096u}) {
      std::vector<uint8_t> bytes(size, static_cast<uint8_t>(fill));
      BytesConfig c(bytes, "hostile");
      for (const auto& s : decode_function(c, walk_capabilities(c)))
        for (const auto& r : s.registers) EXPECT_LE(r.offset + r.bytes, size) << s.name << ": " << r.name;
    }
}

TEST_F(PciRegisters, DiffNamesTheFieldThatChanged) {
  auto after = b;
  after[0x68] |= 0x20;  // Max Payload Size
  auto changes = diff(after);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].reg, "Device Control");
  EXPECT_EQ(changes[0].field, "Max Payload Size");
  EXPECT_EQ(changes[0].before_text, "128 bytes");
  EXPECT_EQ(changes[0].after_text, "256 bytes");
  EXPECT_FALSE(changes[0].by_itself);
}

TEST_F(PciRegisters, DiffTellsWhatChangesByItself) {
  auto after = b;
  after[0x6a] |= 0x01;  // Device Status: Correctable Error Detected
  after[0x72] ^= 0x07;  // Link Status: Current Link Speed
  auto changes = diff(after);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_TRUE(changes[0].by_itself) << changes[0].field;
  EXPECT_FALSE(changes[1].by_itself) << changes[1].field;
}

TEST_F(PciRegisters, DiffSeesBytesWithoutAName) {
  auto after = b;
  after[0x800] = 1;
  auto changes = diff(after);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].offset, 0x800u);
  EXPECT_EQ(changes[0].after, 1u);
}

TEST_F(PciRegisters, DiffSeesAStructureGo) {
  auto after = b;
  after[0x100] = after[0x101] = after[0x102] = after[0x103] = 0;
  auto changes = diff(after);
  std::vector<std::string> gone;
  for (const auto& c : changes)
    if (c.after_text == "gone") gone.push_back(c.structure);
  EXPECT_THAT(gone, testing::ElementsAre("[100] Resizable BAR", "[120] L1 PM Substates"));
}

TEST_F(PciRegisters, DiffOfTheSameIsEmpty) { EXPECT_TRUE(diff(b).empty()); }

TEST(PciRegisterText, Units) {
  EXPECT_EQ(text_speeds(0x1f), "2.5, 5, 8, 16, 32 GT/s");
  EXPECT_EQ(text_speeds(0), "none");
  EXPECT_EQ(text_bar_size(0), "1 MB");
  EXPECT_EQ(text_bar_size(13), "8 GB");
  EXPECT_EQ(text_bar_size(43), "8 EB");
  EXPECT_EQ(text_bar_size(44), "reserved (44)");
  EXPECT_EQ(text_latency(0x1003), "3145728 ns");  // 3 in units of 1048576 ns
  EXPECT_THAT(text_latency(0x1803), testing::HasSubstr("reserved"));
}

}  // namespace
}  // namespace kz
