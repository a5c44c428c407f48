// SPDX-License-Identifier: GPL-2.0-or-later
// Configuration space of a function of this machine, through libpci and sysfs.
#pragma once

#include <memory>
#include <string>

#include "shim/base/bdf.h"
#include "shim/config_space.h"

struct pci_dev;

namespace kz {

struct LibpciDevCloser {
  void operator()(pci_dev* dev) const;
};

// size() is what this user can read: the kernel shows 64 bytes without CAP_SYS_ADMIN. Reads and writes throw
// Error(gone) when the function has vanished or answers all ones in its whole header.
class LiveConfig : public ConfigSpace {
 public:
  // Throws Error(not_found) where the kernel knows no such function. Nothing is written.
  explicit LiveConfig(const Bdf& bdf, bool writable = false, const std::string& sysfs_pci = "/sys/bus/pci");
  ~LiveConfig() override;

  uint32_t size() const override { return size_; }
  // What the kernel has, whatever this user may read: 256 or 4096.
  uint32_t full_size() const { return full_size_; }
  bool all_ones();  // the whole header: a lost function (a virtual function has ids of all ones only)

  uint8_t read8(uint32_t offset) override;
  uint16_t read16(uint32_t offset) override;
  uint32_t read32(uint32_t offset) override;
  void write8(uint32_t offset, uint8_t value) override;
  void write16(uint32_t offset, uint16_t value) override;
  void write32(uint32_t offset, uint32_t value) override;

 private:
  struct Handles;
  bool fetch(uint32_t offset, uint32_t width, uint32_t& value);
  uint32_t get(uint32_t offset, uint32_t width);
  void put(uint32_t offset, uint32_t width, uint32_t value);
  [[noreturn]] void fail(const char* operation, uint32_t offset);

  std::string name_, file_;
  bool writable_;
  uint32_t size_ = 0, full_size_ = 0;
  std::unique_ptr<Handles> handles_;
};

}  // namespace kz
