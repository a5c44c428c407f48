// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/config_live.h"

#include <fmt/format.h>
extern "C" {
#include <pci/pci.h>
}
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/libpci.h"

namespace kz {

void LibpciDevCloser::operator()(pci_dev* dev) const { pci_free_dev(dev); }

struct LiveConfig::Handles {
  LibpciAccess access;
  std::unique_ptr<pci_dev, LibpciDevCloser> dev;
};

LiveConfig::LiveConfig(const Bdf& bdf, bool writable, const std::string& sysfs_pci)
    : name_(to_string(bdf)), file_(sysfs_pci + "/devices/" + name_ + "/config"), writable_(writable) {
  struct stat st {};
  if (::stat(file_.c_str(), &st) != 0)
    throw_errno("open configuration space of", name_, errno, "kangzao ls --all lists what is there");
  full_size_ = st.st_size >= 4096 ? 4096 : 256;
  handles_ = std::make_unique<Handles>();
  handles_->access = open_libpci(sysfs_pci, writable);
  handles_->dev.reset(
      pci_get_dev(handles_->access.get(), static_cast<int>(bdf.domain), bdf.bus, bdf.device, bdf.function));
  uint32_t value = 0;
  if (!fetch(0, 4, value)) fail("read", 0);
  size_ = !fetch(64, 4, value) ? 64 : full_size_ == 4096 && fetch(256, 4, value) ? 4096 : 256;
}

LiveConfig::~LiveConfig() = default;

bool LiveConfig::fetch(uint32_t offset, uint32_t width, uint32_t& value) {
  std::array<u8, 4> bytes{};
  if (pci_read_block(handles_->dev.get(), static_cast<int>(offset), bytes.data(), static_cast<int>(width)) ==
      0)
    return false;
  value = 0;
  for (uint32_t i = 0; i < width; ++i) value |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return true;
}

bool LiveConfig::all_ones() {
  for (uint32_t offset : {0, 4, 8}) {
    uint32_t value = 0;
    if (!fetch(offset, 4, value) || value != 0xffffffff) return false;
  }
  return true;
}

void LiveConfig::fail(const char* operation, uint32_t offset) {
  auto what = fmt::format("{} configuration space of", operation);
  auto target = fmt::format("{} at {:#x}", name_, offset);
  if (::access(file_.c_str(), F_OK) != 0)
    throw Error({Errc::gone, what, target, "the function has vanished", {}, 0});
  if (::access(file_.c_str(), operation[0] == 'w' ? W_OK : R_OK) != 0)
    throw Error({Errc::permission, what, target, "this user may not", "run as root", 0});
  throw Error({Errc::io, what, target, "the kernel refused (lockdown?) or the access failed", {}, 0});
}

uint32_t LiveConfig::get(uint32_t offset, uint32_t width) {
  check_config_access(offset, width, size_, name_);
  uint32_t value = 0;
  if (!fetch(offset, width, value)) fail("read", offset);
  uint32_t ones = width == 4 ? 0xffffffff : (1u << (8 * width)) - 1;
  if (value == ones && all_ones())
    throw Error({Errc::gone, "read configuration space of", name_, "it reads as all ones",
                 "see the kernel log; a rescan or a power cycle may bring it back", 0});
  return value;
}

void LiveConfig::put(uint32_t offset, uint32_t width, uint32_t value) {
  if (!writable_)
    throw Error(
        {Errc::unsupported, "write configuration space of", name_, "it was opened for reading", {}, 0});
  check_config_access(offset, width, size_, name_);
  std::array<u8, 4> bytes{};
  for (uint32_t i = 0; i < width; ++i) bytes[i] = static_cast<u8>(value >> (8 * i));
  if (pci_write_block(handles_->dev.get(), static_cast<int>(offset), bytes.data(), static_cast<int>(width)) ==
      0)
    fail("write", offset);
}

uint8_t LiveConfig::read8(uint32_t offset) { return static_cast<uint8_t>(get(offset, 1)); }
uint16_t LiveConfig::read16(uint32_t offset) { return static_cast<uint16_t>(get(offset, 2)); }
uint32_t LiveConfig::read32(uint32_t offset) { return get(offset, 4); }
void LiveConfig::write8(uint32_t offset, uint8_t value) { put(offset, 1, value); }
void LiveConfig::write16(uint32_t offset, uint16_t value) { put(offset, 2, value); }
void LiveConfig::write32(uint32_t offset, uint32_t value) { put(offset, 4, value); }

}  // namespace kz
