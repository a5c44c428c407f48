// SPDX-License-Identifier: GPL-2.0-or-later
// Turns what a march read into evidence and failures of the running test.
#pragma once

#include "memcheck/march_run.h"

namespace kz::memcheck {

// Nothing for a clean outcome. Else evidence of the first failing word with its place, of decoder faults and
// of poison, and one failure of the running test.
void report(Arena& arena, MarchRunner& runner, const MarchTest& test, const MarchOutcome& outcome);

// Runs, reports, and keeps how much was covered. True when clean.
bool march_and_report(Arena& arena, MarchRunner& runner, const MarchTest& test, const Background& background,
                      const std::vector<Region>& regions);

}  // namespace kz::memcheck
