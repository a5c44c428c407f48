// SPDX-License-Identifier: GPL-2.0-or-later
// Where runs go when the user names no folder.
#pragma once

#include <string>

namespace kz {

// runs/20261202-041300-a1b2c3: a name that is free; nothing is made.
std::string new_run_directory();
// Points runs/latest to it, in one step, so that a reader never finds it missing. Does what it can.
void point_latest(const std::string& directory);

}  // namespace kz
