// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/libpci.h"

extern "C" {
#include <pci/pci.h>
}

#include <array>
#include <cstdarg>
#include <cstdio>

#include "shim/base/error.h"

namespace kz {
namespace {

__attribute__((noreturn, format(printf, 1, 2))) void throw_instead(char* format, ...) {
  std::array<char, 512> text{};
  va_list args;
  va_start(args, format);
  std::vsnprintf(text.data(), text.size(), format, args);
  va_end(args);
  throw Error({Errc::io, "use", "libpci", text.data(), {}, 0});
}

// The library never prints; what went wrong is told by the failed call.
__attribute__((format(printf, 1, 2))) void be_silent(char*, ...) {}

std::string looked_up(char* name) { return name == nullptr ? std::string() : std::string(name); }

}  // namespace

void LibpciCloser::operator()(pci_access* access) const { pci_cleanup(access); }

LibpciAccess open_libpci(const std::string& sysfs_pci, bool writable) {
  LibpciAccess access(pci_alloc());
  access->error = throw_instead;
  access->warning = be_silent;
  access->debug = be_silent;
  access->method = PCI_ACCESS_SYS_BUS_PCI;
  access->writeable = writable ? 1 : 0;
  // pci.ids only: libpci 3.9 loses its udev context where there is no hwdb, and never the network.
  access->id_lookup_mode = PCI_LOOKUP_NO_HWDB;
  std::string key = "sysfs.path", value = sysfs_pci;
  pci_set_param(access.get(), key.data(), value.data());
  pci_init(access.get());
  return access;
}

PciNames::PciNames() : access_(open_libpci()) {}

std::string PciNames::vendor(uint16_t vendor) {
  std::array<char, 256> text{};
  return looked_up(pci_lookup_name(access_.get(), text.data(), text.size(),
                                   PCI_LOOKUP_VENDOR | PCI_LOOKUP_NO_NUMBERS, vendor));
}

std::string PciNames::device(uint16_t vendor, uint16_t device) {
  std::array<char, 256> text{};
  return looked_up(pci_lookup_name(access_.get(), text.data(), text.size(),
                                   PCI_LOOKUP_DEVICE | PCI_LOOKUP_NO_NUMBERS, vendor, device));
}

std::string PciNames::class_name(uint32_t class_code) {
  std::array<char, 256> text{};
  return looked_up(pci_lookup_name(access_.get(), text.data(), text.size(),
                                   PCI_LOOKUP_CLASS | PCI_LOOKUP_NO_NUMBERS, class_code >> 8));
}

}  // namespace kz
