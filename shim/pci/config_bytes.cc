// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/config_bytes.h"

#include <fmt/format.h>

#include "shim/base/error.h"

namespace kz {

void check_config_access(uint32_t offset, uint32_t width, uint32_t size, const std::string& target) {
  if (offset % width != 0)
    throw Error({Errc::usage,
                 "access configuration space of",
                 target,
                 fmt::format("offset {:#x} is not a multiple of {}", offset, width),
                 {},
                 0});
  if (offset >= size || size - offset < width)
    throw Error({Errc::usage,
                 "access configuration space of",
                 target,
                 fmt::format("offset {:#x} is beyond the {} bytes that can be read", offset, size),
                 {},
                 0});
}

BytesConfig::BytesConfig(std::vector<uint8_t> bytes, std::string name, bool writable)
    : bytes_(std::move(bytes)), name_(std::move(name)), writable_(writable) {
  if (bytes_.size() > 4096) bytes_.resize(4096);
}

uint32_t BytesConfig::get(uint32_t offset, uint32_t width) {
  check_config_access(offset, width, size(), name_);
  uint32_t value = 0;
  for (uint32_t i = 0; i < width; ++i) value |= static_cast<uint32_t>(bytes_[offset + i]) << (8 * i);
  return value;
}

void BytesConfig::put(uint32_t offset, uint32_t width, uint32_t value) {
  if (!writable_)
    throw Error({Errc::unsupported, "write configuration space of", name_, "it is a recorded copy", {}, 0});
  check_config_access(offset, width, size(), name_);
  for (uint32_t i = 0; i < width; ++i) bytes_[offset + i] = static_cast<uint8_t>(value >> (8 * i));
}

uint8_t BytesConfig::read8(uint32_t offset) { return static_cast<uint8_t>(get(offset, 1)); }
uint16_t BytesConfig::read16(uint32_t offset) { return static_cast<uint16_t>(get(offset, 2)); }
uint32_t BytesConfig::read32(uint32_t offset) { return get(offset, 4); }
void BytesConfig::write8(uint32_t offset, uint8_t value) { put(offset, 1, value); }
void BytesConfig::write16(uint32_t offset, uint16_t value) { put(offset, 2, value); }
void BytesConfig::write32(uint32_t offset, uint32_t value) { put(offset, 4, value); }

}  // namespace kz
