// SPDX-License-Identifier: GPL-2.0-or-later
// The files in sysfs and debugfs that belong to a device.
#pragma once

#include <string>
#include <vector>

#include "tests/kmod/target.h"

namespace kz::test {

// Regular files below the function, its class devices, the driver's folder, the module's, and the debugfs
// folders that carry the driver's or the module's name. Links are not followed, other devices not entered.
std::vector<std::string> device_files(const Target& target);
// "" where there is none.
std::string hwmon_folder(const Target& target);

// Files that do more than set a value: they take the device away, reset it, power it off, move the driver, or
// write config space or BARs. Never written blindly.
bool is_dangerous_to_write(const std::string& path);
// Files whose mere reading touches the device: config space, BARs, ROM.
bool is_dangerous_to_read(const std::string& path);

}  // namespace kz::test
