// SPDX-License-Identifier: GPL-2.0-or-later
// The table's text and how it is looked up. For the library itself.
#pragma once

#include "tools/changes/changes.h"

namespace kz::changes {

// The files of table/, as built in.
std::span<const std::string_view> table_parts();
// Rows of one file. Throws std::logic_error that names the row.
std::vector<Change> parse_table(std::string_view text);

// A kernel release as a number to compare: 6.12.117 -> 6012; 0: not one.
unsigned series_of(std::string_view release);

struct Match {
  const Change* change = nullptr;
  bool newer_form = false;  // the source is written for a newer kernel than this one
  int score = 0;            // how much of the message the row accounts for
};

// The row that explains a message best. `subjects`: what the message is about; empty: it does not say, so
// every word must be somewhere in `message` or `context`. `release`: 0 where it is not known.
Match find_change(const std::vector<std::string_view>& subjects, std::string_view message,
                  std::string_view context, unsigned release);

// A finding made from a row.
Finding finding_of(const Match& match, std::string_view symbol, unsigned release);

// In the order of the log, remarks and what is not known last; `positions` are theirs in the log.
std::vector<Finding> sorted_findings(std::string_view log, std::vector<Finding> findings,
                                     const std::vector<size_t>& positions);

}  // namespace kz::changes
