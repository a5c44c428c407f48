// SPDX-License-Identifier: GPL-2.0-or-later
// Registers and bit fields of configuration space by name: the header, and every capability that has a layout
// here.
//
// A layout is data: registers by their offset in the structure, fields by their bits. Registers that are
// there only in some functions (a 64-bit MSI, the slot of a port) have a condition, arrays a count that the
// structure itself tells. Nothing is read beyond what the reader can see, nothing is written.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shim/config_space.h"

namespace kz {

// The structure whose layout is asked: what conditions and counts look at.
struct StructureAt {
  ConfigSpace& config;
  uint32_t at = 0;              // of the structure
  unsigned version = 0;         // of an extended capability, else 0
  unsigned express_type = ~0u;  // Device/Port type (7.5.3.2), ~0 where it is not PCI Express
  unsigned lanes = 0;           // Maximum Link Width, 0 unknown

  // 0 where the reader does not see it.
  uint32_t read(uint32_t offset, unsigned bytes = 4) const;
};

struct FieldLayout {
  std::string_view name;
  uint8_t lsb = 0, msb = 0;
  // Names of the values from 0 on, with '|' between them; "" : a flag when one bit wide, else a number.
  std::string_view values = {};
  // Instead of `values`, and where the numbers have a unit.
  std::string (*show)(uint64_t value) = nullptr;
};

struct RegisterLayout {
  uint16_t offset = 0;  // from the start of the structure
  uint8_t bytes = 4;    // 1, 2, 3, 4; 8 as two words, the lower first
  std::string_view name;
  std::vector<FieldLayout> fields = {};
  bool (*there)(const StructureAt&) = nullptr;      // nothing: always
  unsigned (*count)(const StructureAt&) = nullptr;  // of an array; nothing: one
  uint16_t stride = 0;                              // bytes from one element to the next
  bool bars =
      false;  // an array of base address registers: the upper half of a 64-bit one is no register of its own
};

struct StructureLayout {
  uint16_t id = 0;
  bool extended = false;
  std::string_view section;  // "PCIe r6.0 7.5.2"
  std::vector<RegisterLayout> registers;
};

// Nothing where no layout is known.
const StructureLayout* find_layout(uint16_t id, bool extended);
std::span<const StructureLayout> standard_layouts();
std::span<const StructureLayout> extended_layouts();
const StructureLayout& endpoint_header();  // type 0
const StructureLayout& bridge_header();    // type 1

struct DecodedField {
  std::string_view name;
  unsigned lsb = 0, msb = 0;
  uint64_t value = 0;
  std::string text;  // "+" and "-" of a flag, "8 GT/s", "512 bytes", "3"
  bool flag = false;
};

struct DecodedRegister {
  std::string name;     // "Link Status"; "VF BAR 2" for an element of an array
  uint32_t offset = 0;  // in configuration space
  unsigned bytes = 4;
  uint64_t value = 0;
  std::vector<DecodedField> fields;
  const DecodedField* field(std::string_view name) const;
};

struct DecodedStructure {
  std::string name;  // "PCI Express"
  std::string section;
  uint16_t id = 0;
  uint32_t offset = 0;
  unsigned version = 0;
  bool extended = false;
  bool known = false;  // there is a layout
  bool cut = false;    // the reader does not see all of it
  std::vector<DecodedRegister> registers;
  const DecodedRegister* find(std::string_view name) const;
};

// The header first, then the capabilities in the order of their chains.
std::vector<DecodedStructure> decode_function(ConfigSpace& config, const CapabilityWalk& walk);

// One difference of two snapshots of a function: of a field, of bits that have no name, or of a structure
// that only one has.
struct ConfigChange {
  std::string structure, reg, field;  // the last empty: bits without a name; both: the structure came or went
  uint32_t offset = 0;                // in configuration space
  unsigned lsb = 0, msb = 0;          // bits in the register
  uint64_t before = 0, after = 0;
  std::string before_text, after_text;
  // Status bits, counters and whatever else the device changes by itself in ordinary work.
  bool by_itself = false;
};
// Sorted by offset. Bytes outside every known register are compared too, double word by double word.
std::vector<ConfigChange> diff_config(ConfigSpace& before, ConfigSpace& after);

}  // namespace kz
