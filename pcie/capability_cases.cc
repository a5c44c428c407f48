// SPDX-License-Identifier: GPL-2.0-or-later
// Capability chains and what must be in them: PCIe r6.0, sections 7.5.2 to 7.9.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "pcie/subject.h"

namespace kz::test {
namespace {

bool faulty(const CapabilityWalk& walk, bool extended) {
  for (const auto& f : walk.faults)
    if (f.extended == extended && f.kind != ChainFault::Kind::truncated) return true;
  return false;
}

Findings of_chain(const CapabilityWalk& walk, bool extended) {
  CapabilityWalk half;
  for (const auto& f : walk.faults)
    if (f.extended == extended) half.faults.push_back(f);
  return check_chains(half);
}

}  // namespace

KZ_TEST(pcie_capability, standard_chain,
        {.meaning = "the capability chain ends: no loop, nothing misaligned or out of range",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  judge_rules(of_chain(s.walk, false));
  if (faulty(s.walk, false)) return;
  need_standard_chain(s);
  if ((s.config->read16(PCI_STATUS) & PCI_STATUS_CAP_LIST) == 0) skip("the function has no capabilities");
}

KZ_TEST(pcie_capability, extended_chain,
        {.meaning = "the extended capability chain ends: no loop, nothing misaligned or out of range",
         .level = 1,
         .needs = {Cap::config_read, Cap::config_extended}}) {
  Subject s = look_at(device());
  judge_rules(of_chain(s.walk, true));
  if (faulty(s.walk, true)) return;
  need_whole_chain(s);
  uint32_t header = s.config->read32(0x100);
  if (header == 0 || header == 0xffffffff) skip("the function has no extended capabilities");
}

KZ_TEST(pcie_capability, no_duplicates,
        {.meaning = "capabilities of which there is one a function are there once",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  judge_rules(check_duplicates(s.walk));
  if (!HasFailure()) need_whole_chain(s);
}

KZ_TEST(pcie_capability, required,
        {.meaning = "a PCI Express endpoint has power management, and message interrupts where it interrupts",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  need_standard_chain(s);
  if (!express_type(*s.config, s.walk)) skip("not a PCI Express function: no PCI Express capability");
  if (s.virtual_function) skip("a virtual function takes these from its physical function");
  if (faulty(s.walk, false)) FAIL() << "the chain is broken: " << s.walk.faults.front().text;
  judge_rules(check_required(*s.config, s.walk, s.virtual_function));
}

KZ_TEST(pcie_capability, serial_number,
        {.meaning = "the Device Serial Number is set and reads the same twice",
         .level = 1,
         .needs = {Cap::config_read, Cap::config_extended}}) {
  Subject s = look_at(device());
  auto cap = find_capability(s.walk, PCI_EXT_CAP_ID_DSN, true);
  if (!cap) {
    need_whole_chain(s);
    skip("the function has no Device Serial Number");
  }
  judge_rules(check_serial(*s.config, s.walk));
  if (cap->offset + 12u > s.config->size()) need_whole_chain(s);
  for (uint32_t offset : {cap->offset + 4u, cap->offset + 8u})
    EXPECT_EQ(s.config->read32(offset), s.config->read32(offset))
        << "the serial number changes while it is read";
}

}  // namespace kz::test
