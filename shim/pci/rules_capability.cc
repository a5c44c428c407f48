// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of the capability chains and of the capabilities in them: PCIe r6.0, sections 7.5.2 to 7.9.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <algorithm>
#include <bit>

#include "shim/pci/rules.h"

namespace kz {
namespace {

bool readable(ConfigSpace& config, uint32_t offset, uint32_t length) {
  return offset + length <= config.size();
}

std::string_view chain_rule(const ChainFault& f) {
  if (f.extended) return "PCIe r6.0 7.6.3";
  return f.at < PCI_STD_HEADER_SIZEOF ? "PCIe r6.0 7.5.1.1.11" : "PCIe r6.0 7.6.1";
}

// More than one is prohibited outright for MSI (7.7.1) and MSI-X (7.7.2); PM and PCI Express describe the
// whole function. For the extended ones the specification defines one structure a function, but software
// copes.
bool single(const PciCapability& cap) {
  if (!cap.extended) {
    constexpr uint16_t ids[] = {PCI_CAP_ID_PM, PCI_CAP_ID_MSI, PCI_CAP_ID_EXP, PCI_CAP_ID_MSIX};
    return std::find(std::begin(ids), std::end(ids), cap.id) != std::end(ids);
  }
  constexpr uint16_t ids[] = {PCI_EXT_CAP_ID_ERR,   PCI_EXT_CAP_ID_DSN,   PCI_EXT_CAP_ID_ARI,
                              PCI_EXT_CAP_ID_ATS,   PCI_EXT_CAP_ID_PRI,   PCI_EXT_CAP_ID_LTR,
                              PCI_EXT_CAP_ID_SRIOV, PCI_EXT_CAP_ID_ACS,   PCI_EXT_CAP_ID_DPC,
                              PCI_EXT_CAP_ID_L1SS,  PCI_EXT_CAP_ID_PASID, PCI_EXT_CAP_ID_PTM};
  return std::find(std::begin(ids), std::end(ids), cap.id) != std::end(ids);
}

// GT/s of a Link Speed field (7.5.3.6, 7.5.3.18): 1 is the lowest of the Supported Link Speeds vector.
double speed_of(unsigned code) {
  constexpr double gts[] = {0, 2.5, 5, 8, 16, 32, 64};
  return code < std::size(gts) ? gts[code] : 0;
}

}  // namespace

std::optional<PciCapability> find_capability(const CapabilityWalk& walk, uint16_t id, bool extended) {
  for (const auto& cap : walk.found)
    if (cap.id == id && cap.extended == extended) return cap;
  return std::nullopt;
}

std::string serial_of(ConfigSpace& config) {
  auto cap = find_capability(walk_capabilities(config), PCI_EXT_CAP_ID_DSN, true);
  if (!cap || cap->offset + 12u > config.size()) return {};
  uint64_t dsn = config.read32(cap->offset + 4u) | static_cast<uint64_t>(config.read32(cap->offset + 8u))
                                                       << 32;
  if (dsn == 0 || dsn == ~uint64_t{0}) return {};  // no number of its own
  std::string text;
  for (int byte = 7; byte >= 0; --byte)
    text += fmt::format("{:02x}{}", dsn >> (8 * byte) & 0xff, byte > 0 ? "-" : "");
  return text;
}

bool standard_chain_seen(const CapabilityWalk& walk) {
  // An incomplete walk without any fault has stopped at the extended space or before the header.
  if (walk.complete) return true;
  bool cut = std::any_of(walk.faults.begin(), walk.faults.end(), [](const ChainFault& f) {
    return !f.extended && f.kind == ChainFault::Kind::truncated;
  });
  return !cut && !walk.found.empty();
}

std::optional<unsigned> express_type(ConfigSpace& config, const CapabilityWalk& walk) {
  auto cap = find_capability(walk, PCI_CAP_ID_EXP, false);
  if (!cap || !readable(config, cap->offset, 4)) return std::nullopt;
  return (config.read16(cap->offset + PCI_EXP_FLAGS) & PCI_EXP_FLAGS_TYPE) >> 4;
}

Findings check_chains(const CapabilityWalk& walk) {
  Findings out;
  for (const auto& f : walk.faults)
    if (f.kind != ChainFault::Kind::truncated)
      out.push_back({std::string(chain_rule(f)), f.at, hex(f.target), f.text});
  return out;
}

Findings check_duplicates(const CapabilityWalk& walk) {
  Findings out;
  for (size_t i = 0; i < walk.found.size(); ++i) {
    const auto& cap = walk.found[i];
    if (!single(cap)) continue;
    for (size_t j = 0; j < i; ++j) {
      const auto& first = walk.found[j];
      if (first.id != cap.id || first.extended != cap.extended) continue;
      out.push_back({cap.extended ? "PCIe r6.0 7.6.3" : "PCIe r6.0 7.6.1", cap.offset, hex(cap.id),
                     fmt::format("a second {} capability; the first is at {:#x}",
                                 capability_name(cap.id, cap.extended), first.offset),
                     cap.extended});
      break;
    }
  }
  return out;
}

Findings check_required(ConfigSpace& config, const CapabilityWalk& walk, bool virtual_function) {
  Findings out;
  auto type = express_type(config, walk);
  // A broken or half-seen chain may hide what it has.
  bool broken =
      std::any_of(walk.faults.begin(), walk.faults.end(), [](const ChainFault& f) { return !f.extended; });
  if (!type || virtual_function || broken) return out;
  bool endpoint = *type == PCI_EXP_TYPE_ENDPOINT || *type == PCI_EXP_TYPE_LEG_END;
  bool integrated = *type == PCI_EXP_TYPE_RC_END;
  if (!endpoint && !integrated) return out;
  // Chipset functions are known to leave out power management.
  if (!find_capability(walk, PCI_CAP_ID_PM, false))
    out.push_back({"PCIe r6.0 7.5.2", PCI_CAPABILITY_LIST, "none",
                   "a PCI Express endpoint without the Power Management capability", integrated});
  bool message =
      find_capability(walk, PCI_CAP_ID_MSI, false) || find_capability(walk, PCI_CAP_ID_MSIX, false);
  if (config.read8(PCI_INTERRUPT_PIN) != 0 && !message)
    out.push_back({"PCIe r6.0 6.1.4", PCI_INTERRUPT_PIN, hex(config.read8(PCI_INTERRUPT_PIN)),
                   "a PCI Express endpoint that interrupts has neither MSI nor MSI-X", integrated});
  return out;
}

std::optional<LinkRegisters> read_link_registers(ConfigSpace& config, const CapabilityWalk& walk) {
  auto cap = find_capability(walk, PCI_CAP_ID_EXP, false);
  auto type = express_type(config, walk);
  // Integrated endpoints and event collectors have no link.
  if (!cap || !type || *type == PCI_EXP_TYPE_RC_END || *type == PCI_EXP_TYPE_RC_EC) return std::nullopt;
  uint32_t status_offset = cap->offset + PCI_EXP_LNKSTA;
  if (!readable(config, status_offset, 2)) return std::nullopt;
  uint32_t able = config.read32(cap->offset + PCI_EXP_LNKCAP);
  uint16_t status = config.read16(status_offset);
  LinkRegisters link;
  link.max = {speed_of(able & PCI_EXP_LNKCAP_SLS), (able & PCI_EXP_LNKCAP_MLW) >> 4};
  link.now = {speed_of(status & PCI_EXP_LNKSTA_CLS), static_cast<unsigned>(status & PCI_EXP_LNKSTA_NLW) >> 4};
  link.status_offset = status_offset;
  // A link that is down, or a hypervisor that says nothing.
  if (link.now.gts == 0 || link.now.width == 0 || link.max.gts == 0 || link.max.width == 0)
    return std::nullopt;
  return link;
}

Findings check_link(ConfigSpace& config, const CapabilityWalk& walk) {
  Findings out;
  auto link = read_link_registers(config, walk);
  if (!link) return out;
  auto add = [&](std::string text) {
    out.push_back(
        {"PCIe r6.0 7.5.3.8", link->status_offset, hex(config.read16(link->status_offset)), std::move(text)});
  };
  unsigned width = link->now.width;
  if (width != 12 && (!std::has_single_bit(width) || width > 32))
    add(fmt::format("x{} is no link width", width));
  else if (width > link->max.width)
    add(fmt::format("the link runs x{}, beyond its capability of x{}", width, link->max.width));
  if (link->now.gts > link->max.gts)
    add(fmt::format("the link runs at {:g} GT/s, beyond its capability of {:g}", link->now.gts,
                    link->max.gts));
  return out;
}

Findings check_serial(ConfigSpace& config, const CapabilityWalk& walk) {
  Findings out;
  auto cap = find_capability(walk, PCI_EXT_CAP_ID_DSN, true);
  if (!cap || !readable(config, cap->offset, 12)) return out;
  uint64_t dsn = config.read32(cap->offset + 4u) | static_cast<uint64_t>(config.read32(cap->offset + 8u))
                                                       << 32;
  if (dsn == 0 || dsn == ~uint64_t{0})
    out.push_back({"PCIe r6.0 7.9.3", cap->offset, fmt::format("{:#018x}", dsn),
                   "the Device Serial Number is not a number of its own (EUI-64)", true});
  return out;
}

Findings check_aer_status(ConfigSpace& config, const CapabilityWalk& walk) {
  Findings out;
  auto cap = find_capability(walk, PCI_EXT_CAP_ID_ERR, true);
  if (!cap || !readable(config, cap->offset, PCI_ERR_COR_MASK + 4)) return out;
  auto reg = [&](uint32_t offset) { return config.read32(cap->offset + offset); };
  // Enumeration of absent functions leaves Unsupported Request and Advisory Non-Fatal behind.
  uint32_t bad = reg(PCI_ERR_UNCOR_STATUS) & ~reg(PCI_ERR_UNCOR_MASK) & ~uint32_t{PCI_ERR_UNC_UNSUP};
  uint32_t corrected = reg(PCI_ERR_COR_STATUS) & ~reg(PCI_ERR_COR_MASK) & ~uint32_t{PCI_ERR_COR_ADV_NFAT};
  if (bad != 0)
    out.push_back({"PCIe r6.0 7.8.4.2", cap->offset + uint32_t{PCI_ERR_UNCOR_STATUS}, hex(bad),
                   "uncorrectable errors are recorded and not cleared", true});
  if (corrected != 0)
    out.push_back({"PCIe r6.0 7.8.4.5", cap->offset + uint32_t{PCI_ERR_COR_STATUS}, hex(corrected),
                   "correctable errors are recorded and not cleared", true});
  return out;
}

}  // namespace kz
