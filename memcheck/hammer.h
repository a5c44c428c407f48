// SPDX-License-Identifier: GPL-2.0-or-later
// Row hammer: the rows on both sides of a victim are read in turn, in all banks at once. Every read is an
// opening of its row where the device closes rows after each access; where it keeps them open only the turns
// are.
#pragma once

#include <chrono>
#include <random>

#include "memcheck/march_run.h"

namespace kz::memcheck {

struct HammerPlan {
  unsigned accesses = 24000;  // to the two aggressors together, for each victim row and column of lines
  std::chrono::duration<double> budget{1};
};

struct HammerOutcome {
  std::vector<Hit> hits;  // physical addresses
  uint64_t rows = 0;      // victim rows that were hammered, in every bank
  double covered = 0;     // of all rows
};

// Needs the geometry and physical addresses; the arena keeps others away from the memory. Stops at the first
// hit.
HammerOutcome hammer(Arena& arena, const HammerPlan& plan, std::mt19937_64& rng);

}  // namespace kz::memcheck
