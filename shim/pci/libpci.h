// SPDX-License-Identifier: GPL-2.0-or-later
// libpci without its exits: its error handler ends the process by default, ours throws Error(io).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct pci_access;

namespace kz {

struct LibpciCloser {
  void operator()(pci_access* access) const;
};
using LibpciAccess = std::unique_ptr<pci_access, LibpciCloser>;

// An access through `sysfs_pci`, the folder that holds devices/. Nothing is scanned or opened yet.
LibpciAccess open_libpci(const std::string& sysfs_pci = "/sys/bus/pci", bool writable = false);

// Names from pci.ids; empty where it has none. Never asks the network.
class PciNames {
 public:
  PciNames();
  std::string vendor(uint16_t vendor);
  std::string device(uint16_t vendor, uint16_t device);
  std::string class_name(uint32_t class_code);  // 24 bits: base, sub, interface

 private:
  LibpciAccess access_;
};

}  // namespace kz
