// SPDX-License-Identifier: GPL-2.0-or-later
// Folders of runs, for the commands that make them.
#pragma once

#include <string>

namespace kz {

// runs/20261202-041300-a1b2c3
std::string new_run_directory();
// Points runs/latest at it, in one step, so that a reader never finds it missing.
void point_latest(const std::string& directory);

}  // namespace kz
