// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of the PCI specifications as checks of one function's configuration space; nothing is written.
//
// A check looks only at what can be told: bytes that the reader cannot see, fields that a virtual function
// does not implement and registers that a hypervisor leaves empty give no finding.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shim/config_space.h"
#include "shim/pci/sysfs.h"

namespace kz {

struct RuleFinding {
  std::string rule;      // "PCIe r6.0 7.5.1.2.1"
  uint32_t offset = 0;   // in configuration space
  std::string got;       // "0x7"
  std::string text;      // one sentence
  bool warning = false;  // unwise or unusual, but met on devices that work
};
using Findings = std::vector<RuleFinding>;
// A register's value as `got` has it.
inline std::string hex(uint64_t value) { return fmt::format("{:#x}", value); }

// A base address register, PCIe r6.0, 7.5.1.2.1. The upper half of a 64-bit one is not listed.
struct Bar {
  enum class Kind { io, memory32, memory64, reserved } kind = Kind::memory32;
  unsigned index = 0;
  uint32_t raw = 0;      // low word
  uint64_t address = 0;  // without flag bits; 0: not implemented or not assigned
};
// Six for an endpoint's header, two for a bridge's, none for others.
std::vector<Bar> decode_bars(ConfigSpace& config);

std::optional<PciCapability> find_capability(const CapabilityWalk& walk, uint16_t id, bool extended);

// The Device Serial Number (PCIe r6.0, 7.9.3) as "00-11-...", empty where there is none: no or a cut
// capability, all zeroes or all ones. Faults of the chain are the tests' business.
std::string serial_of(ConfigSpace& config);
// False when the reader could not see all of the standard chain, so that a capability not found may be there.
bool standard_chain_seen(const CapabilityWalk& walk);
// Device/Port type of the PCI Express capability (7.5.3.2); nothing for conventional PCI.
std::optional<unsigned> express_type(ConfigSpace& config, const CapabilityWalk& walk);

Findings check_header(ConfigSpace& config, const CapabilityWalk& walk, bool virtual_function);  // 7.5.1
Findings check_chains(const CapabilityWalk& walk);                                              // 7.6
Findings check_duplicates(const CapabilityWalk& walk);                                          // 7.5 to 7.9
Findings check_required(ConfigSpace& config, const CapabilityWalk& walk, bool virtual_function);
Findings check_bars(ConfigSpace& config, const CapabilityWalk& walk);  // 7.5.1.2.1
// `sizes` of the six BARs in bytes, 0 where unknown. 7.7.2
Findings check_msix(ConfigSpace& config, const CapabilityWalk& walk, const std::array<uint64_t, 6>& sizes,
                    bool virtual_function);
Findings check_link(ConfigSpace& config, const CapabilityWalk& walk);        // 7.5.3.6, 7.5.3.8
Findings check_serial(ConfigSpace& config, const CapabilityWalk& walk);      // 7.9.3
Findings check_aer_status(ConfigSpace& config, const CapabilityWalk& walk);  // 7.8.4

// Link capability and status of the function itself; nothing where it has no link or says nothing.
struct LinkRegisters {
  PciLink now, max;
  uint32_t status_offset = 0;
};
std::optional<LinkRegisters> read_link_registers(ConfigSpace& config, const CapabilityWalk& walk);

// The same function seen by the kernel.
Findings compare_ids(ConfigSpace& config, const PciInfo& info);
Findings compare_bars(ConfigSpace& config, const CapabilityWalk& walk, const PciInfo& info);
// Decoding and interrupts: what the kernel has enabled must be on in the function.
Findings compare_enables(ConfigSpace& config, const CapabilityWalk& walk, const PciInfo& info);

}  // namespace kz
