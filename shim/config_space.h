// SPDX-License-Identifier: GPL-2.0-or-later
// PCI configuration space of one function: live (sysfs through libpci, vfio-user) or replayed from a text dump.
// Rules: PCI Express Base Specification r6.0, section 7.5 (header), 7.6 to 7.9 (capabilities).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kz {

class ConfigSpace {
 public:
  virtual ~ConfigSpace() = default;
  // Bytes that can be read: 64 (unprivileged sysfs), 256 or 4096.
  virtual uint32_t size() const = 0;
  // Little-endian, naturally aligned. Throws Error(usage) beyond size(), Error(gone) where the device is lost.
  virtual uint8_t read8(uint32_t offset) = 0;
  virtual uint16_t read16(uint32_t offset) = 0;
  virtual uint32_t read32(uint32_t offset) = 0;
  // Throws Error(unsupported) on replayed and read-only spaces, Error(permission).
  virtual void write8(uint32_t offset, uint8_t value) = 0;
  virtual void write16(uint32_t offset, uint16_t value) = 0;
  virtual void write32(uint32_t offset, uint32_t value) = 0;
};

struct PciCapability {
  uint16_t id = 0;
  uint16_t offset = 0;
  uint8_t version = 0;  // extended only
  bool extended = false;
};

// What is wrong with a chain; the walk stops there.
struct ChainFault {
  enum class Kind { loop, out_of_range, misaligned, truncated, all_ones } kind;  // all_ones: nothing answers there
  bool extended = false;
  uint16_t at = 0;      // offset of the pointer
  uint16_t target = 0;  // where it points
  std::string text;     // "capability at 0x40 points back to 0x40"
};

struct CapabilityWalk {
  std::vector<PciCapability> found;
  std::vector<ChainFault> faults;
  // `truncated` is not a device's fault: the reader could not see the bytes (permission or short dump).
  bool complete = true;
};

// Never loops, never reads outside size(). Standard chain from 0x34 (status bit 4), extended from 0x100 when
// size() is 4096 and the first header is neither 0 nor all ones.
CapabilityWalk walk_capabilities(ConfigSpace& config);
std::string capability_name(uint16_t id, bool extended);

}  // namespace kz
