// SPDX-License-Identifier: GPL-2.0-or-later
// What a person sees while tests run: one changing line on a terminal, one line a test in a pipe.
#pragma once

#include <chrono>
#include <string>

#include "tools/journal/verdict.h"

namespace kz {

class Progress {
 public:
  // `total`: how many tests will run; the estimate of the time left comes from it.
  Progress(size_t total, bool quiet);
  void begin(const std::string& id);
  void tick();  // the test goes on: the line shows the time
  void end(const std::string& id, Verdict v, double seconds, const std::string& reason);
  void note(const std::string& text);
  void silence(bool on = true) { silent_ = on; }  // results are counted, not shown

 private:
  void clear_line();

  size_t total_, done_ = 0;
  std::string current_;
  bool quiet_, terminal_, colour_, silent_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace kz
