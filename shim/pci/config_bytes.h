// SPDX-License-Identifier: GPL-2.0-or-later
// Configuration space held in memory: a replayed dump, a snapshot, or a test's own bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shim/config_space.h"

namespace kz {

// Checks that an access of `width` bytes at `offset` is naturally aligned and inside `size`. Throws
// Error(usage).
void check_config_access(uint32_t offset, uint32_t width, uint32_t size, const std::string& target);

class BytesConfig : public ConfigSpace {
 public:
  // `name` stands in errors. Writes to a read-only space throw Error(unsupported). Bytes beyond 4096 are
  // dropped.
  BytesConfig(std::vector<uint8_t> bytes, std::string name, bool writable = false);

  uint32_t size() const override { return static_cast<uint32_t>(bytes_.size()); }
  uint8_t read8(uint32_t offset) override;
  uint16_t read16(uint32_t offset) override;
  uint32_t read32(uint32_t offset) override;
  void write8(uint32_t offset, uint8_t value) override;
  void write16(uint32_t offset, uint16_t value) override;
  void write32(uint32_t offset, uint32_t value) override;

 private:
  uint32_t get(uint32_t offset, uint32_t width);
  void put(uint32_t offset, uint32_t width, uint32_t value);

  std::vector<uint8_t> bytes_;
  std::string name_;
  bool writable_;
};

}  // namespace kz
