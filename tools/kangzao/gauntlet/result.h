// SPDX-License-Identifier: GPL-2.0-or-later
// What the gauntlet found, as JSON (docs/gauntlet.md) and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kz::gauntlet {

struct RowResult {
  std::string id;
  nlohmann::json fault;  // what was planted
  bool caught = false;
  std::vector<std::string> by;  // tests, in order of their alarms
  std::string detector;
  double seconds = 0;  // until the first alarm, or all that ran
  std::string cls, expected, confidence, reason;
  std::string kernel;        // of a driver bug: the role of the guest that showed it, or was the last not to
  std::string unplantable;   // why, where it could not be planted
  bool right_class() const;  // `expected` lists accepted ones, "a|b"
};

struct CleanRun {
  double seconds = 0;
  size_t passed = 0;
  std::vector<std::string> alarms;  // "test: verdict: reason"
  std::string kernel;               // of a clean run in a lab guest: its role
};

struct GauntletResult {
  std::vector<RowResult> rows;
  std::vector<CleanRun> clean;
  std::vector<std::string> ignored;  // tests that are not clean on a sound device either
  std::string build;
  std::optional<uint64_t> vary;

  size_t total() const;  // rows that could be planted
  size_t caught() const;
  size_t right() const;
  bool in_lab() const { return !rows.empty() && !rows.front().kernel.empty(); }
  // Rows of the driver that our own checks caught on a kernel without debugging: what is our merit alone.
  size_t ours_on_stock() const;
  size_t false_alarms() const;  // clean runs that were not silent
  int exit_code() const;        // 0 all caught, rightly named and silent; 1 not; 125 nothing run
};

nlohmann::json to_json(const RowResult& row);
RowResult row_from_json(const nlohmann::json& j);
nlohmann::json to_json(const CleanRun& run);
CleanRun clean_from_json(const nlohmann::json& j);
nlohmann::json to_json(const GauntletResult& result);
std::string row_line(const RowResult& row);
std::string to_terminal(const GauntletResult& result);

}  // namespace kz::gauntlet
