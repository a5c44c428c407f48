// SPDX-License-Identifier: GPL-2.0-or-later
// One function seen twice: its own configuration space, and the kernel's record of it.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/pci/rules.h"

namespace kz {
namespace {

// On x86 bus addresses are CPU addresses; elsewhere a host bridge may add an offset, but keeps the low bits.
#if defined(__x86_64__) || defined(__i386__)
constexpr uint64_t kComparable = ~uint64_t{0};
#else
constexpr uint64_t kComparable = 0xfffff;
#endif

void differs(Findings& out, const char* rule, uint32_t offset, uint64_t config, uint64_t kernel,
             const char* what, bool warning = false) {
  if (config == kernel) return;
  out.push_back({rule, offset, fmt::format("{:#x}", config),
                 fmt::format("{} is {:#x} in configuration space, {:#x} to the kernel", what, config, kernel),
                 warning});
}

}  // namespace

Findings compare_ids(ConfigSpace& config, const PciInfo& info) {
  Findings out;
  if (!info.virtual_function) {  // its ids are FFFFh by rule (9.3.4.1.1); the kernel takes them from the PF
    differs(out, "PCIe r6.0 7.5.1.1.1", PCI_VENDOR_ID, config.read16(PCI_VENDOR_ID), info.vendor,
            "vendor id");
    differs(out, "PCIe r6.0 7.5.1.1.2", PCI_DEVICE_ID, config.read16(PCI_DEVICE_ID), info.device,
            "device id");
  }
  differs(out, "PCIe r6.0 7.5.1.1.5", PCI_REVISION_ID, config.read8(PCI_REVISION_ID), info.revision,
          "revision");
  // The kernel corrects the class of devices that are known to misreport it.
  differs(out, "PCIe r6.0 7.5.1.1.6", PCI_CLASS_PROG, config.read32(PCI_CLASS_REVISION) >> 8, info.class_code,
          "class code", true);
  if ((config.read8(PCI_HEADER_TYPE) & 0x7f) == PCI_HEADER_TYPE_NORMAL && !info.virtual_function) {
    if (info.subsystem_vendor)
      differs(out, "PCIe r6.0 7.5.1.2.3", PCI_SUBSYSTEM_VENDOR_ID, config.read16(PCI_SUBSYSTEM_VENDOR_ID),
              *info.subsystem_vendor, "subsystem vendor id");
    if (info.subsystem)
      differs(out, "PCIe r6.0 7.5.1.2.3", PCI_SUBSYSTEM_ID, config.read16(PCI_SUBSYSTEM_ID), *info.subsystem,
              "subsystem id");
  }
  return out;
}

Findings compare_bars(ConfigSpace& config, const CapabilityWalk& walk, const PciInfo& info) {
  Findings out;
  // BARs of a virtual function stand in its physical function; Enhanced Allocation replaces them.
  if (info.virtual_function || find_capability(walk, PCI_CAP_ID_EA, false)) return out;
  for (const Bar& bar : decode_bars(config)) {
    if (bar.index >= info.resources.size()) break;
    const PciResource& r = info.resources[bar.index];
    if (!r.assigned() || r.fixed()) continue;
    uint32_t offset = PCI_BASE_ADDRESS_0 + 4 * bar.index;
    bool io = bar.kind == Bar::Kind::io;
    if (io != r.io()) {
      out.push_back({"PCIe r6.0 7.5.1.2.1", offset, fmt::format("{:#x}", bar.raw),
                     fmt::format("BAR{} is {} in configuration space, {} to the kernel", bar.index,
                                 io ? "I/O" : "memory", r.io() ? "I/O" : "memory")});
      continue;
    }
    differs(out, "PCIe r6.0 7.5.1.2.1", offset, bar.address & kComparable, r.start & kComparable,
            fmt::format("BAR{}", bar.index).c_str());
  }
  return out;
}

Findings compare_enables(ConfigSpace& config, const CapabilityWalk& walk, const PciInfo& info) {
  Findings out;
  uint16_t command = config.read16(PCI_COMMAND);
  bool memory = false, io = false;
  for (const auto& r : info.resources) {
    if (&r - info.resources.data() >= 6) break;
    memory = memory || (r.assigned() && r.memory());
    io = io || (r.assigned() && r.io());
  }
  bool decodes = (memory && (command & PCI_COMMAND_MEMORY) != 0) || (io && (command & PCI_COMMAND_IO) != 0);
  // The VGA arbiter takes decoding away from display controllers; virtual functions have no such bits.
  bool judged = !info.virtual_function && info.class_code >> 16 != 0x03;
  if (judged && info.enabled > 0 && (memory || io) && !decodes)
    out.push_back({"PCIe r6.0 7.5.1.1.3", PCI_COMMAND, fmt::format("{:#x}", command),
                   "the kernel has enabled the function, but it decodes none of its BARs"});
  auto enabled = [&](uint16_t id, uint16_t bit) {
    auto cap = find_capability(walk, id, false);
    return cap && cap->offset + 4u <= config.size() && (config.read16(cap->offset + 2u) & bit) != 0;
  };
  if (!info.msi_irqs.empty() && walk.complete && !enabled(PCI_CAP_ID_MSI, PCI_MSI_FLAGS_ENABLE) &&
      !enabled(PCI_CAP_ID_MSIX, PCI_MSIX_FLAGS_ENABLE))
    out.push_back({"PCIe r6.0 7.7.2.2", PCI_CAPABILITY_LIST, "off",
                   fmt::format("the kernel uses {} message interrupts, but MSI and MSI-X are off",
                               info.msi_irqs.size())});
  return out;
}

}  // namespace kz
