// SPDX-License-Identifier: GPL-2.0-or-later
// MSI-X structures: PCIe r6.0, section 7.7.2.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "pcie/subject.h"
#include "shim/uapi/kz_regs.h"

namespace kz::test {

KZ_TEST(pcie_msix, structures_in_bars,
        {.meaning = "MSI-X table and pending array lie in memory BARs, whole, apart and alone in their pages",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  if (!find_capability(s.walk, PCI_CAP_ID_MSIX, false)) {
    need_standard_chain(s);
    skip("the function has no MSI-X capability");
  }
  judge_rules(check_msix(*s.config, s.walk, s.bar_sizes, s.virtual_function));
}

KZ_TEST(pcie_msix, apart_from_registers,
        {.meaning = "no MSI-X structure shares a page with the device's registers",
         .level = 1,
         .needs = {Cap::config_read, Cap::registers}}) {
  Subject s = look_at(device());
  auto cap = find_capability(s.walk, PCI_CAP_ID_MSIX, false);
  if (!cap) skip("the function has no MSI-X capability");
  for (uint32_t at : {cap->offset + uint32_t{PCI_MSIX_TABLE}, cap->offset + uint32_t{PCI_MSIX_PBA}}) {
    uint32_t value = s.config->read32(at);
    if ((value & 7) != KZ_BAR_REGS || (value & ~7u) >= KZ_BAR0_SIZE) continue;
    evidence(ev::pci_rule,
             {{"rule", "PCIe r6.0 7.7.2"}, {"offset", at}, {"got", fmt::format("{:#x}", value)}});
    ADD_FAILURE() << fmt::format("an MSI-X structure lies at {:#x} of BAR{}, among the registers",
                                 value & ~7u, KZ_BAR_REGS);
  }
}

}  // namespace kz::test
