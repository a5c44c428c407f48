// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of the MSI-X structures: PCIe r6.0, section 7.7.2.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/pci/rules.h"

namespace kz {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint16_t kVirtioVendor = 0x1af4;

struct Area {
  const char* name;
  unsigned bir;
  uint64_t offset, length;
  uint32_t at;  // of its register in configuration space
  uint64_t first_page() const { return offset / kPage; }
  uint64_t last_page() const { return (offset + length - 1) / kPage; }
};

bool share_page(const Area& a, const Area& b) {
  return a.bir == b.bir && a.first_page() <= b.last_page() && b.first_page() <= a.last_page();
}

bool overlap(const Area& a, const Area& b) {
  return a.bir == b.bir && a.offset < b.offset + b.length && b.offset < a.offset + a.length;
}

// Register structures whose place is declared in configuration space: virtio 1.2, section 4.1.4.
std::vector<Area> virtio_areas(ConfigSpace& config, const CapabilityWalk& walk) {
  std::vector<Area> areas;
  if (config.read16(PCI_VENDOR_ID) != kVirtioVendor) return areas;
  for (const auto& cap : walk.found) {
    if (cap.extended || cap.id != PCI_CAP_ID_VNDR || cap.offset + 16u > config.size()) continue;
    unsigned type = config.read8(cap.offset + 3u);
    uint64_t length = config.read32(cap.offset + 12u);
    // 1 to 4 are register structures; 5 is a window in configuration space, 8 shared memory
    if (type < 1 || type > 4 || length == 0) continue;
    areas.push_back({"a virtio structure", config.read8(cap.offset + 4u), config.read32(cap.offset + 8u),
                     length, cap.offset});
  }
  return areas;
}

void check_place(ConfigSpace& config, const Area& area, uint64_t bar_size, bool virtual_function,
                 bool enhanced, Findings& out) {
  auto add = [&](std::string text) {
    out.push_back(
        {"PCIe r6.0 7.7.2", area.at, fmt::format("{:#x}", config.read32(area.at)), std::move(text)});
  };
  if (area.bir > 5)
    return add(fmt::format("{} is in BAR indicator {}, which is reserved", area.name, area.bir));
  if (!virtual_function && !enhanced) {
    bool listed = false;
    for (const Bar& bar : decode_bars(config)) {
      if (bar.index != area.bir) continue;
      listed = true;
      if (bar.kind == Bar::Kind::io) add(fmt::format("{} is in BAR{}, an I/O BAR", area.name, area.bir));
    }
    if (!listed) return add(fmt::format("{} is in BAR{}, which is no BAR of its own", area.name, area.bir));
  }
  if (bar_size != 0 && area.offset + area.length > bar_size)
    add(fmt::format("{} ends at {:#x} of BAR{}, which has {:#x} bytes", area.name, area.offset + area.length,
                    area.bir, bar_size));
}

}  // namespace

Findings check_msix(ConfigSpace& config, const CapabilityWalk& walk, const std::array<uint64_t, 6>& sizes,
                    bool virtual_function) {
  Findings out;
  auto cap = find_capability(walk, PCI_CAP_ID_MSIX, false);
  if (!cap || cap->offset + 12u > config.size()) return out;
  uint64_t vectors = (config.read16(cap->offset + PCI_MSIX_FLAGS) & PCI_MSIX_FLAGS_QSIZE) + 1u;
  uint32_t table_at = cap->offset + PCI_MSIX_TABLE, pba_at = cap->offset + PCI_MSIX_PBA;
  uint32_t table_reg = config.read32(table_at), pba_reg = config.read32(pba_at);
  Area table{"the MSI-X table", table_reg & PCI_MSIX_TABLE_BIR, table_reg & PCI_MSIX_TABLE_OFFSET,
             vectors * 16, table_at};
  Area pba{"the MSI-X pending array", pba_reg & PCI_MSIX_PBA_BIR, pba_reg & PCI_MSIX_PBA_OFFSET,
           (vectors + 63) / 64 * 8, pba_at};
  bool enhanced = find_capability(walk, PCI_CAP_ID_EA, false).has_value();
  for (const Area* area : {&table, &pba})
    check_place(config, *area, area->bir < sizes.size() ? sizes[area->bir] : 0, virtual_function, enhanced,
                out);
  if (overlap(table, pba))
    out.push_back({"PCIe r6.0 7.7.2", pba_at, fmt::format("{:#x}", pba_reg),
                   fmt::format("table ({:#x}) and pending array ({:#x}) of MSI-X overlap in BAR{}",
                               table.offset, pba.offset, table.bir)});
  for (const Area& other : virtio_areas(config, walk))
    for (const Area* area : {&table, &pba})
      if (share_page(*area, other))
        out.push_back({"PCIe r6.0 7.7.2", area->at, fmt::format("{:#x}", config.read32(area->at)),
                       fmt::format("{} shares a 4 KiB page of BAR{} with {} at {:#x}", area->name, area->bir,
                                   other.name, other.offset)});
  return out;
}

}  // namespace kz
