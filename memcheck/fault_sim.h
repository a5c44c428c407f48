// SPDX-License-Identifier: GPL-2.0-or-later
// Which simple static faults a march test detects: every fault primitive <S/F/R> of one and two cells is
// planted in a small memory, for all placements and all initial states (notation: Hamdioui, "Testing Static
// Random Access Memories", 2004, chapter 3).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memcheck/march.h"

namespace kz::memcheck {

// The sensitising operation: nothing (a state is enough), a read, or a write of `value`.
struct Stimulus {
  enum class Kind : uint8_t { none, read, write } kind = Kind::none;
  bool value = false;
};

struct FaultPrimitive {
  std::string family;  // "SF", "TF", "WDF", "RDF", "DRDF", "IRF", "CFst", "CFds", "CFtr", ...
  std::optional<bool> aggressor_state;  // none: a one-cell fault
  Stimulus aggressor_op;
  bool victim_state = false;
  Stimulus victim_op;
  bool effect = false;          // F: the victim's value afterwards
  std::optional<bool> returns;  // R: what a victim read returns; none where the stimulus is no victim read
  std::string text() const;     // "<0;1w0/1/->"
};

// 12 one-cell and 36 two-cell primitives.
std::vector<FaultPrimitive> static_faults();

// True when the test reads a wrong value for every placement among `cells` cells and every initial state.
// `either` says how ⇕ is run.
bool detects(const MarchTest& test, const FaultPrimitive& fault, unsigned cells = 5,
             Order either = Order::up);

}  // namespace kz::memcheck
