// SPDX-License-Identifier: GPL-2.0-or-later
// The deadlines of a boot: every moment of it has one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shim/base/units.h"
#include "tools/lab/results.h"

namespace kz::lab {

class BootWatch {
 public:
  // Seconds that a step may take.
  using Limit = std::function<double(const std::string& step)>;
  // `expected`: the steps that may come. All of them together, with what lies between, have a limit too.
  BootWatch(Limit limit, const std::vector<std::string>& expected, Clock::time_point start);
  // What is late; empty: nothing. `reached`: the steps so far; `alive`: the guest's sign of life.
  std::string late(const std::vector<Step>& reached, const std::string& alive, Clock::time_point now);

 private:
  Limit limit_;
  double overall_s_;
  Clock::time_point start_, moved_,
      heard_;         // of the boot, of the last begin or end, of the last sign of life
  size_t moves_ = 0;  // begins and ends so far
  std::string alive_;
};

}  // namespace kz::lab
