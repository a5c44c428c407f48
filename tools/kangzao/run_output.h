// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <string>

#include "tools/report/run_summary.h"

namespace kz {

// Prints a finished run the way it was asked for and returns its exit code.
int print_run(const RunSummary& run, const std::string& directory, bool json);

}  // namespace kz
