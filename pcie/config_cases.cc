// SPDX-License-Identifier: GPL-2.0-or-later
// Header and BARs: PCIe r6.0, section 7.5.1.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "pcie/subject.h"

namespace kz::test {

KZ_TEST(pcie_config, identify,
        {.meaning = "the function answers with an assigned id, a known layout and class",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  ASSERT_FALSE(s.config->read32(PCI_VENDOR_ID) == 0xffffffff &&
               s.config->read32(PCI_CLASS_REVISION) == 0xffffffff)
      << "the header reads as all ones";
  judge_rules(check_header(*s.config, s.walk, s.virtual_function));
  const Identity& id = device().identity();
  EXPECT_NE(id.vendor, 0xffff) << id.name;
  EXPECT_EQ(id.class_code, s.config->read32(PCI_CLASS_REVISION) >> 8)
      << "the class changed since it was opened";
}

KZ_TEST(pcie_config, stable,
        {.meaning = "read-only fields of the header read the same a hundred times",
         .level = 1,
         .needs = {Cap::config_read}}) {
  ConfigSpace& config = device().config();
  for (uint32_t offset : {PCI_VENDOR_ID, PCI_CLASS_REVISION, PCI_SUBSYSTEM_VENDOR_ID}) {
    uint32_t first = config.read32(offset);
    for (int i = 0; i < 100; ++i) {
      uint32_t again = config.read32(offset);
      if (again == first) continue;
      evidence(ev::pci_rule,
               {{"rule", "PCIe r6.0 7.5.1.1"}, {"offset", offset}, {"got", fmt::format("{:#x}", again)}});
      FAIL() << fmt::format("offset {:#x} read {:#x}, then {:#x}", offset, first, again);
    }
  }
}

KZ_TEST(pcie_config, widths_agree,
        {.meaning = "bytes, words and double words of the header read the same values",
         .level = 1,
         .needs = {Cap::config_read}}) {
  ConfigSpace& config = device().config();
  for (uint32_t offset = 0; offset < PCI_STD_HEADER_SIZEOF; offset += 4) {
    if (offset == PCI_COMMAND || offset == PCI_CACHE_LINE_SIZE)
      continue;  // status and BIST may change by themselves
    uint32_t whole = config.read32(offset), words = 0, bytes = 0;
    for (uint32_t i = 0; i < 2; ++i)
      words |= static_cast<uint32_t>(config.read16(offset + 2 * i)) << (16 * i);
    for (uint32_t i = 0; i < 4; ++i) bytes |= static_cast<uint32_t>(config.read8(offset + i)) << (8 * i);
    if (words == whole && bytes == whole) continue;
    evidence(ev::pci_rule,
             {{"rule", "PCIe r6.0 7.2.2"}, {"offset", offset}, {"got", fmt::format("{:#x}", bytes)}});
    ADD_FAILURE() << fmt::format("offset {:#x}: {:#x} by double word, {:#x} by words, {:#x} by bytes", offset,
                                 whole, words, bytes);
  }
}

KZ_TEST(pcie_config, ids_match_sysfs,
        {.meaning = "ids, class and revision are what the kernel has recorded",
         .level = 1,
         .needs = {Cap::config_read, Cap::sysfs}}) {
  Subject s = look_at(device());
  judge_rules(compare_ids(*s.config, *s.info));
}

KZ_TEST(pcie_config, bars_sane,
        {.meaning = "BARs have types that exist, and 64-bit ones have their upper half",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  judge_rules(check_bars(*s.config, s.walk));
}

KZ_TEST(pcie_config, bars_match_sysfs,
        {.meaning = "BARs hold the addresses that the kernel has assigned",
         .level = 1,
         .needs = {Cap::config_read, Cap::sysfs}}) {
  Subject s = look_at(device());
  if (s.virtual_function) skip("a virtual function has its BARs in its physical function");
  judge_rules(compare_bars(*s.config, s.walk, *s.info));
}

KZ_TEST(pcie_config, enables_match_sysfs,
        {.meaning = "decoding and message interrupts are on where the kernel uses them",
         .level = 1,
         .needs = {Cap::config_read, Cap::sysfs}}) {
  Subject s = look_at(device());
  judge_rules(compare_enables(*s.config, s.walk, *s.info));
}

}  // namespace kz::test
