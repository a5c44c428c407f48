// SPDX-License-Identifier: GPL-2.0-or-later
// A run for a person at a terminal.
#pragma once

#include <string>

#include "tools/report/run_summary.h"

namespace kz {

struct TerminalStyle {
  bool colour = false;
  size_t width = 100;
};

// Table of levels and verdicts, every result that is not a pass with its reason, proved and not proved. Text
// that came from a device or a log is stripped of control characters.
std::string to_terminal(const RunSummary& run, const TerminalStyle& style);
std::string colourise(Verdict v, const std::string& text, bool colour);
std::string printable(const std::string& text);

}  // namespace kz
