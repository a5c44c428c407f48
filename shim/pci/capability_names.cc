// SPDX-License-Identifier: GPL-2.0-or-later
// Names of capability ids: PCI Code and ID Assignment Specification r1.16, sections 2 and 3; PCIe r6.0,
// section 7.9.
#include <fmt/format.h>

#include <array>
#include <string_view>

#include "shim/config_space.h"

namespace kz {
namespace {

constexpr std::array<std::string_view, 0x16> kStandard = {
    "Null",
    "PCI Power Management",
    "AGP",
    "Vital Product Data",
    "Slot Identification",
    "MSI",
    "CompactPCI Hot Swap",
    "PCI-X",
    "HyperTransport",
    "Vendor-Specific",
    "Debug Port",
    "CompactPCI Central Resource Control",
    "PCI Hot-Plug",
    "PCI Bridge Subsystem Vendor ID",
    "AGP 8x",
    "Secure Device",
    "PCI Express",
    "MSI-X",
    "Serial ATA Data/Index Configuration",
    "Advanced Features",
    "Enhanced Allocation",
    "Flattening Portal Bridge",
};

constexpr std::array<std::string_view, 0x35> kExtended = {
    "Null",
    "Advanced Error Reporting",
    "Virtual Channel",
    "Device Serial Number",
    "Power Budgeting",
    "Root Complex Link Declaration",
    "Root Complex Internal Link Control",
    "Root Complex Event Collector Endpoint Association",
    "Multi-Function Virtual Channel",
    "Virtual Channel (with MFVC)",
    "Root Complex Register Block Header",
    "Vendor-Specific Extended",
    "Configuration Access Correlation",
    "Access Control Services",
    "Alternative Routing-ID Interpretation",
    "Address Translation Services",
    "Single Root I/O Virtualization",
    "Multi-Root I/O Virtualization",
    "Multicast",
    "Page Request Interface",
    "Reserved for AMD",
    "Resizable BAR",
    "Dynamic Power Allocation",
    "TPH Requester",
    "Latency Tolerance Reporting",
    "Secondary PCI Express",
    "Protocol Multiplexing",
    "Process Address Space ID",
    "LN Requester",
    "Downstream Port Containment",
    "L1 PM Substates",
    "Precision Time Measurement",
    "PCI Express over M-PHY",
    "FRS Queueing",
    "Readiness Time Reporting",
    "Designated Vendor-Specific",
    "VF Resizable BAR",
    "Data Link Feature",
    "Physical Layer 16.0 GT/s",
    "Lane Margining at the Receiver",
    "Hierarchy ID",
    "Native PCIe Enclosure Management",
    "Physical Layer 32.0 GT/s",
    "Alternate Protocol",
    "System Firmware Intermediary",
    "Shadow Functions",
    "Data Object Exchange",
    "Device 3",
    "Integrity and Data Encryption",
    "Physical Layer 64.0 GT/s",
    "Flit Logging",
    "Flit Performance Measurement",
    "Flit Error Injection",
};

}  // namespace

std::string capability_name(uint16_t id, bool extended) {
  if (extended && id < kExtended.size()) return std::string(kExtended[id]);
  if (!extended && id < kStandard.size()) return std::string(kStandard[id]);
  return fmt::format("unknown {}capability {:#0{}x}", extended ? "extended " : "", id, extended ? 6 : 4);
}

}  // namespace kz
