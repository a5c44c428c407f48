// SPDX-License-Identifier: GPL-2.0-or-later
// A timed list of control requests: lines of {"at_ms": N, "do": {...}}, counted from the first client's
// connect. Empty lines and lines that start with '#' are skipped.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shim/base/units.h"

namespace kz::softtpu {

struct ScriptStep {
  std::chrono::milliseconds at{0};
  nlohmann::json request;
  int line = 0;
};

// In order of time; equal times keep the order of lines. Throws Error(usage) with the line's number, and
// Error(not_found) or another for a file that cannot be read.
std::vector<ScriptStep> parse_script(std::string_view text, const std::string& name);
std::vector<ScriptStep> load_script(const std::string& path);

class ScriptPlayer {
 public:
  explicit ScriptPlayer(std::vector<ScriptStep> steps) : steps_(std::move(steps)) {}
  void start(Clock::time_point now) { started_ = started_.value_or(now); }
  // The next step that is due, once.
  const ScriptStep* due(Clock::time_point now);

 private:
  std::vector<ScriptStep> steps_;
  std::optional<Clock::time_point> started_;
  size_t next_ = 0;
};

}  // namespace kz::softtpu
