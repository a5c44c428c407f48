// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of the header and its base address registers: PCIe r6.0, section 7.5.1.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/pci/rules.h"

namespace kz {
namespace {

unsigned header_layout(ConfigSpace& config) { return config.read8(PCI_HEADER_TYPE) & 0x7f; }

unsigned bar_count(ConfigSpace& config) {
  switch (header_layout(config)) {
    case PCI_HEADER_TYPE_NORMAL:
      return 6;
    case PCI_HEADER_TYPE_BRIDGE:
      return 2;
    default:
      return 0;
  }
}

// PCI Code and ID Assignment r1.16, section 1: base classes 00 to 13, 40 and ff are defined.
bool known_base_class(uint32_t base) { return base <= 0x13 || base == 0x40 || base == 0xff; }

void check_ids(ConfigSpace& config, bool virtual_function, Findings& out) {
  uint16_t vendor = config.read16(PCI_VENDOR_ID);
  // Vendor and Device ID of a virtual function are FFFFh by rule (9.3.4.1.1).
  if (!virtual_function && (vendor == 0xffff || vendor == 0))
    out.push_back(
        {"PCIe r6.0 7.5.1.1.1", PCI_VENDOR_ID, hex(vendor), "the vendor id is not an assigned one"});
}

}  // namespace

std::vector<Bar> decode_bars(ConfigSpace& config) {
  std::vector<Bar> bars;
  unsigned count = bar_count(config);
  for (unsigned i = 0; i < count; ++i) {
    Bar bar;
    bar.index = i;
    bar.raw = config.read32(PCI_BASE_ADDRESS_0 + 4 * i);
    if ((bar.raw & PCI_BASE_ADDRESS_SPACE_IO) != 0) {
      bar.kind = Bar::Kind::io;
      bar.address = bar.raw & ~3u;
    } else {
      bar.address = bar.raw & ~0xfu;
      switch (bar.raw & PCI_BASE_ADDRESS_MEM_TYPE_MASK) {
        case PCI_BASE_ADDRESS_MEM_TYPE_32:
          break;
        case PCI_BASE_ADDRESS_MEM_TYPE_64:
          bar.kind = Bar::Kind::memory64;
          if (i + 1 < count)
            bar.address |= static_cast<uint64_t>(config.read32(PCI_BASE_ADDRESS_0 + 4 * (i + 1))) << 32;
          ++i;
          break;
        default:
          bar.kind = Bar::Kind::reserved;
      }
    }
    bars.push_back(bar);
  }
  return bars;
}

Findings check_header(ConfigSpace& config, const CapabilityWalk& walk, bool virtual_function) {
  Findings out;
  check_ids(config, virtual_function, out);
  unsigned layout = header_layout(config);
  if (layout > PCI_HEADER_TYPE_CARDBUS)
    out.push_back(
        {"PCIe r6.0 7.5.1.1.9", PCI_HEADER_TYPE, hex(layout), "the header layout is a reserved one"});
  uint32_t class_code = config.read32(PCI_CLASS_REVISION) >> 8;
  if (!known_base_class(class_code >> 16))
    out.push_back({"PCI Code and ID Assignment r1.16 1", PCI_CLASS_REVISION,
                   fmt::format("{:#08x}", class_code), "the base class is a reserved one", true});
  uint8_t pin = config.read8(PCI_INTERRUPT_PIN);
  if (layout <= PCI_HEADER_TYPE_BRIDGE && pin > 4)
    out.push_back(
        {"PCIe r6.0 7.5.1.1.13", PCI_INTERRUPT_PIN, hex(pin), "the interrupt pin is a reserved value"});
  auto type = express_type(config, walk);
  if (type && !virtual_function && layout == PCI_HEADER_TYPE_NORMAL && (class_code >> 16) != 0x06) {
    uint16_t vendor = config.read16(PCI_SUBSYSTEM_VENDOR_ID);
    if (vendor == 0 || vendor == 0xffff)
      out.push_back({"PCIe r6.0 7.5.1.2.3", PCI_SUBSYSTEM_VENDOR_ID, hex(vendor),
                     "the subsystem vendor id is not set", true});
  }
  // 7.5.1.1.9 and table 7-21: only ports and bridges have a type 1 header.
  bool port = type && *type >= PCI_EXP_TYPE_ROOT_PORT && *type <= PCI_EXP_TYPE_PCIE_BRIDGE;
  if (type && (port != (layout == PCI_HEADER_TYPE_BRIDGE)))
    out.push_back({"PCIe r6.0 7.5.3.2", PCI_HEADER_TYPE, hex(layout),
                   fmt::format("the header layout does not fit Device/Port type {:#x}", *type)});
  return out;
}

Findings check_bars(ConfigSpace& config, const CapabilityWalk& walk) {
  Findings out;
  bool express = find_capability(walk, PCI_CAP_ID_EXP, false).has_value();
  unsigned count = bar_count(config);
  for (const Bar& bar : decode_bars(config)) {
    uint32_t offset = PCI_BASE_ADDRESS_0 + 4 * bar.index;
    auto add = [&](std::string text, bool warning = false) {
      out.push_back(
          {"PCIe r6.0 7.5.1.2.1", offset, hex(bar.raw), fmt::format("BAR{} {}", bar.index, text), warning});
    };
    if (bar.kind == Bar::Kind::io && (bar.raw & 2) != 0) add("is an I/O BAR with its reserved bit set");
    if (bar.kind == Bar::Kind::reserved) {
      // Type 01 meant "below 1 MiB" in conventional PCI before 2.2.
      bool below_1m = (bar.raw & PCI_BASE_ADDRESS_MEM_TYPE_MASK) == PCI_BASE_ADDRESS_MEM_TYPE_1M;
      add("has a reserved memory type", below_1m && !express);
    }
    if (bar.kind == Bar::Kind::memory64 && bar.index + 1 == count) add("is 64 bits wide, but the last one");
  }
  return out;
}

}  // namespace kz
