// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/registers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/pci_regs.h>

#include <algorithm>
#include <map>
#include <set>

#include "shim/pci/register_text.h"
#include "shim/pci/rules.h"

namespace kz {

std::string text_speeds(uint64_t vector) {
  constexpr std::string_view speeds[] = {"2.5", "5", "8", "16", "32", "64"};
  std::vector<std::string_view> have;
  for (size_t i = 0; i < std::size(speeds); ++i)
    if (vector >> i & 1) have.push_back(speeds[i]);
  return have.empty() ? "none" : fmt::format("{} GT/s", fmt::join(have, ", "));
}

std::string text_bar_size(uint64_t exponent) {
  constexpr std::string_view units[] = {"MB", "GB", "TB", "PB", "EB"};
  return exponent < 44 ? fmt::format("{} {}", 1u << exponent % 10, units[exponent / 10])
                       : fmt::format("reserved ({})", exponent);
}

std::string text_bar_sizes(uint64_t vector) {
  std::vector<std::string> have;
  for (unsigned i = 0; i < 28; ++i)
    if (vector >> i & 1) have.push_back(text_bar_size(i));
  return have.empty() ? "none" : fmt::format("{}", fmt::join(have, ", "));
}

std::string text_latency(uint64_t value) {
  unsigned scale = value >> 10 & 7;
  if (scale > 5) return fmt::format("{} in a reserved scale ({})", value & 0x3ff, scale);
  return fmt::format("{} ns", (value & 0x3ff) << 5 * scale);
}

uint32_t StructureAt::read(uint32_t offset, unsigned bytes) const {
  if (at + offset + bytes > config.size()) return 0;
  return bytes == 1   ? config.read8(at + offset)
         : bytes == 2 ? config.read16(at + offset)
                      : config.read32(at + offset);
}

const StructureLayout* find_layout(uint16_t id, bool extended) {
  for (const auto& layout : extended ? extended_layouts() : standard_layouts())
    if (layout.id == id) return &layout;
  return nullptr;
}

const DecodedField* DecodedRegister::field(std::string_view name_) const {
  auto it = std::ranges::find(fields, name_, &DecodedField::name);
  return it == fields.end() ? nullptr : &*it;
}

const DecodedRegister* DecodedStructure::find(std::string_view name_) const {
  auto it = std::ranges::find(registers, name_, &DecodedRegister::name);
  return it == registers.end() ? nullptr : &*it;
}

namespace {

std::string text_of(const FieldLayout& f, uint64_t value) {
  if (f.show) return f.show(value);
  if (!f.values.empty()) {
    std::string_view rest = f.values;
    for (uint64_t i = 0;; ++i) {
      size_t bar = rest.find('|');
      if (i == value) return std::string(rest.substr(0, bar));
      if (bar == rest.npos) return fmt::format("reserved ({})", value);
      rest.remove_prefix(bar + 1);
    }
  }
  if (f.lsb == f.msb) return value ? "+" : "-";
  return fmt::format("{}", value);
}

uint64_t read_value(ConfigSpace& config, uint32_t offset, unsigned bytes) {
  switch (bytes) {
    case 1:
      return config.read8(offset);
    case 2:
      return config.read16(offset);
    case 3:  // the class code: a byte below a word
      return config.read8(offset) | static_cast<uint64_t>(config.read16(offset + 1)) << 8;
    case 4:
      return config.read32(offset);
    default:
      return config.read32(offset) | static_cast<uint64_t>(config.read32(offset + 4)) << 32;
  }
}

uint64_t bits(uint64_t value, unsigned lsb, unsigned msb) {
  uint64_t mask = msb - lsb == 63 ? ~uint64_t{0} : (uint64_t{1} << (msb - lsb + 1)) - 1;
  return value >> lsb & mask;
}

DecodedRegister decode_register(ConfigSpace& config, const RegisterLayout& layout, uint32_t offset,
                                std::string name) {
  DecodedRegister out{std::move(name), offset, layout.bytes, read_value(config, offset, layout.bytes), {}};
  for (const auto& f : layout.fields) {
    uint64_t value = bits(out.value, f.lsb, f.msb);
    bool flag = f.lsb == f.msb && f.values.empty() && !f.show;
    out.fields.push_back({f.name, f.lsb, f.msb, value, text_of(f, value), flag});
  }
  return out;
}

// The upper half of a 64-bit base address register has no type of its own (7.5.1.2.1).
const RegisterLayout& upper_half() {
  static const RegisterLayout layout{0, 4, "", {{"Address 63:32", 0, 31, {}, text_hex<8>}}};
  return layout;
}

void decode_into(const StructureAt& place, const StructureLayout& layout, DecodedStructure& out) {
  out.section = layout.section;
  out.known = true;
  for (const auto& reg : layout.registers) {
    if (reg.there && !reg.there(place)) continue;
    unsigned count = reg.count ? reg.count(place) : 1;
    bool upper = false;
    for (unsigned i = 0; i < count; ++i) {
      uint32_t offset = place.at + reg.offset + i * reg.stride;
      if (offset + reg.bytes > place.config.size()) {
        out.cut = true;
        break;
      }
      // A structure of odd place or a walk that a fault ended: bytes that cannot be read as a register.
      unsigned align = reg.bytes == 8 ? 4 : reg.bytes == 3 ? 1 : reg.bytes;
      if (offset % align != 0) continue;
      std::string name(reg.name);
      if (reg.count) name += fmt::format(" {}", i);
      if (upper) name += " upper half";
      out.registers.push_back(
          decode_register(place.config, upper ? upper_half() : reg, offset, std::move(name)));
      upper = reg.bars && !upper && (out.registers.back().value & 7) == 4;
    }
  }
}

StructureAt place_of(ConfigSpace& config, const CapabilityWalk& walk) {
  StructureAt place{config, 0};
  if (auto type = express_type(config, walk)) {
    place.express_type = *type;
    auto express = find_capability(walk, PCI_CAP_ID_EXP, false);
    place.at = express->offset;
    place.lanes = (place.read(PCI_EXP_LNKCAP) & PCI_EXP_LNKCAP_MLW) >> 4;
    if (place.lanes > 32) place.lanes = 0;  // no width that exists
    place.at = 0;
  }
  return place;
}

}  // namespace

std::vector<DecodedStructure> decode_function(ConfigSpace& config, const CapabilityWalk& walk) {
  std::vector<DecodedStructure> out;
  const StructureAt common = place_of(config, walk);
  unsigned header = config.read8(PCI_HEADER_TYPE) & 0x7f;
  DecodedStructure head{.name = header == 1 ? "Header, type 1" : "Header, type 0"};
  if (header <= 1) {
    decode_into(common, header == 1 ? bridge_header() : endpoint_header(), head);
    std::ranges::sort(head.registers, {}, &DecodedRegister::offset);
  } else {
    head.name = fmt::format("Header, type {}", header);
  }
  out.push_back(std::move(head));
  for (const auto& cap : walk.found) {
    DecodedStructure s{.name = capability_name(cap.id, cap.extended),
                       .id = cap.id,
                       .offset = cap.offset,
                       .version = cap.version,
                       .extended = cap.extended};
    StructureAt place = common;
    place.at = cap.offset;
    place.version = cap.version;
    if (const StructureLayout* layout = find_layout(cap.id, cap.extended)) decode_into(place, *layout, s);
    out.push_back(std::move(s));
  }
  return out;
}

// ---- difference ----

namespace {

// What a function changes by itself while it works: status, logs, mailboxes. What a link runs at and what
// power state it is in are not among them.
bool changes_by_itself(std::string_view reg, std::string_view field) {
  constexpr std::string_view of_link[] = {"Current Link Speed", "Negotiated Link Width",
                                          "Data Link Layer Link Active", "Flit Mode Status"};
  if (std::ranges::find(of_link, field) != std::end(of_link)) return false;
  if (reg == "Power Management Control/Status") return field == "PME Status";
  return reg.find("Status") != reg.npos || reg.starts_with("Header Log") || reg == "Pending Bits" ||
         reg.starts_with("Error Source") || reg.starts_with("VPD ");
}

std::string structure_name(const DecodedStructure& s) {
  return s.offset == 0 ? s.name : fmt::format("[{:x}] {}", s.offset, s.name);
}

void diff_registers(const DecodedStructure& a, const DecodedStructure& b, std::vector<ConfigChange>& out) {
  for (const auto& before : a.registers) {
    auto it = std::ranges::find_if(
        b.registers, [&](const auto& r) { return r.offset == before.offset && r.name == before.name; });
    if (it == b.registers.end() || it->value == before.value) continue;
    uint64_t named = 0;
    for (size_t i = 0; i < before.fields.size(); ++i) {
      const DecodedField &x = before.fields[i], &y = it->fields[i];
      for (unsigned bit = x.lsb; bit <= x.msb; ++bit) named |= uint64_t{1} << bit;
      if (x.value != y.value)
        out.push_back({structure_name(a), before.name, std::string(x.name), before.offset, x.lsb, x.msb,
                       x.value, y.value, x.text, y.text, changes_by_itself(before.name, x.name)});
    }
    uint64_t rest = (before.value ^ it->value) & ~named;
    if (rest != 0)
      out.push_back({structure_name(a), before.name, "", before.offset, 0, before.bytes * 8 - 1, before.value,
                     it->value, hex(before.value), hex(it->value), changes_by_itself(before.name, "")});
  }
}

void mark(const DecodedStructure& s, std::set<uint32_t>& seen) {
  for (const auto& r : s.registers)
    for (unsigned i = 0; i < r.bytes; ++i) seen.insert(r.offset + i);
}

}  // namespace

std::vector<ConfigChange> diff_config(ConfigSpace& before, ConfigSpace& after) {
  std::vector<ConfigChange> out;
  auto a = decode_function(before, walk_capabilities(before)),
       b = decode_function(after, walk_capabilities(after));
  auto same = [](const DecodedStructure& x, const DecodedStructure& y) {
    return x.offset == y.offset && x.id == y.id && x.extended == y.extended && x.name == y.name;
  };
  std::set<uint32_t> seen;
  for (const auto& x : a) {
    auto it = std::ranges::find_if(b, [&](const auto& y) { return same(x, y); });
    if (it == b.end()) {
      out.push_back(
          {.structure = structure_name(x), .offset = x.offset, .before_text = "there", .after_text = "gone"});
      continue;
    }
    diff_registers(x, *it, out);
    mark(x, seen);
    mark(*it, seen);
  }
  for (const auto& y : b)
    if (std::ranges::none_of(a, [&](const auto& x) { return same(x, y); }))
      out.push_back({.structure = structure_name(y),
                     .offset = y.offset,
                     .before_text = "not there",
                     .after_text = "there"});
  // Whatever has no name: capability headers, vendor registers, the room between structures.
  for (uint32_t at = 0; at + 4 <= std::min(before.size(), after.size()); at += 4) {
    uint32_t x = before.read32(at), y = after.read32(at);
    for (unsigned i = 0; i < 4; ++i)
      if (seen.contains(at + i)) {
        x &= ~(uint32_t{0xff} << 8 * i);
        y &= ~(uint32_t{0xff} << 8 * i);
      }
    if (x == y) continue;
    std::string where = "between the structures";
    for (const auto& s : a)
      if (s.offset <= at && (s.offset != 0 || at < 0x40)) where = structure_name(s);
    out.push_back({.structure = where,
                   .offset = at,
                   .msb = 31,
                   .before = x,
                   .after = y,
                   .before_text = fmt::format("{:#010x}", x),
                   .after_text = fmt::format("{:#010x}", y)});
  }
  if (before.size() != after.size())
    out.push_back({.structure = "readable bytes",
                   .offset = std::min(before.size(), after.size()),
                   .before = before.size(),
                   .after = after.size(),
                   .before_text = fmt::format("{}", before.size()),
                   .after_text = fmt::format("{}", after.size())});
  std::ranges::stable_sort(out, {}, [](const ConfigChange& c) { return std::pair(c.offset, c.lsb); });
  return out;
}

}  // namespace kz
