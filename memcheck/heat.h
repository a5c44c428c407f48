// SPDX-License-Identifier: GPL-2.0-or-later
// Brings a device to its working temperature by honest work.
#pragma once

#include <chrono>

#include "shim/device.h"
#include "tests/harness/queue_guard.h"

namespace kz::memcheck {

struct Heat {
  double start_celsius = 0, end_celsius = 0;  // core
  double hbm_celsius = 0;
  bool plateau = false;  // it stopped rising; else the budget ended it
  double seconds = 0;
};

// A load that keeps the matrix unit busy: call step() between other work to keep the device warm.
class Heater {
 public:
  Heater(Device& device, Context& context);
  // Some tens of milliseconds of matmuls.
  void step();
  // Steps until the core temperature rose by less than 0.5 degrees within a second, or the budget ends.
  Heat until_plateau(std::chrono::duration<double> budget);

 private:
  Device& device_;
  std::unique_ptr<HbmBlock> block_;
  std::unique_ptr<test::QueueGuard> queue_;
  cmd::Matmul work_;
};

}  // namespace kz::memcheck
