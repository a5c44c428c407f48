// SPDX-License-Identifier: GPL-2.0-or-later
// Two runs side by side: which verdicts changed, what in the environment changed, which measurements moved.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/report/run_summary.h"

namespace kz {

struct Comparison {
  struct Change {
    std::string what, before, after;
  };
  std::vector<Change> verdicts;     // a test that only one run has: "absent"
  std::vector<Change> environment;  // kernel, driver, firmware, link ...
  std::vector<Change> metrics;      // medians that moved by more than `threshold`
  bool same() const { return verdicts.empty() && environment.empty() && metrics.empty(); }
};

// `threshold`: 0.25 means a quarter up or down.
Comparison compare(const RunSummary& before, const RunSummary& after, double threshold);
nlohmann::json to_json(const Comparison& c);
std::string to_terminal(const Comparison& c);

}  // namespace kz
