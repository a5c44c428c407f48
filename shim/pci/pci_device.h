// SPDX-License-Identifier: GPL-2.0-or-later
// Any PCI function with any driver, seen through config space and sysfs only; and one replayed from a dump.
#pragma once

#include <memory>

#include "shim/device.h"

namespace kz {

// pci:BDF. Throws Error(usage) for a malformed address, Error(not_found), Error(gone) when it reads all ones.
std::unique_ptr<Device> open_pci(const Uri& uri, const OpenOptions& options);
// dump:FILE[,bdf=BDF]: a text dump as `lspci -xxxx` prints it. Without bdf: its only function.
std::unique_ptr<Device> open_dump(const Uri& uri, const OpenOptions& options);

}  // namespace kz
