// SPDX-License-Identifier: GPL-2.0-or-later
// Any PCI function with any driver, seen through configuration space and sysfs only; and one replayed from a
// dump.
#pragma once

#include <memory>

#include "shim/device.h"

namespace kz {

// pci:BDF. Writes nothing. Throws Error(usage) for a malformed address or an option, Error(not_found) naming
// the nearest functions, Error(gone) when it reads as all ones.
std::unique_ptr<Device> open_pci(const Uri& uri, const OpenOptions& options);
// dump:FILE[,bdf=BDF]: a text dump as lspci -xxxx prints it; bdf may be left out when it holds one function.
// Throws Error(not_found), Error(permission), Error(bad_data) naming file and line, Error(usage), Error(gone)
// when the function was recorded as all ones.
std::unique_ptr<Device> open_dump(const Uri& uri, const OpenOptions& options);

}  // namespace kz
