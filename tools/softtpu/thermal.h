// SPDX-License-Identifier: GPL-2.0-or-later
// Heat, power, clock and fan of the board, as first-order systems driven by how busy the engines are.
//
// Idle in a room of 30 C the core rests at 38 C and HBM at 40 C; under full load they tend to 78 C (time
// constant 2 s) and 84 C (3 s). Above 95 C the clock drops, at 105 C the device must stop itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "shim/uapi/kz_telemetry.h"
#include "tools/softtpu/fault_board.h"

namespace kz::softtpu {

class Thermal {
 public:
  static constexpr double limit_celsius = 95, critical_celsius = 105;
  static constexpr double power_cap_w = 350, clock_max_mhz = 1500;

  // Share of the time since the last step that each engine worked; may exceed 1 where several did.
  struct Load {
    double compute = 0, dma = 0, other = 0;
  };
  struct State {
    double core, hbm;  // celsius
    double power_w, clock_mhz;
    uint32_t fan_rpm, throttle, throttle_ms;
    double load;  // 0 .. 1, smoothed
  };

  Thermal(double ambient, FaultBoard& faults);

  void step(double seconds, const Load& load);
  void set_ambient(double celsius);
  void set_temperature(double celsius);
  // The supply failed under load (F20) and the board has not been reset since.
  void set_brownout(bool on);
  State state() const;
  double core() const { return core_now_.load(std::memory_order_relaxed); }
  double hbm() const { return hbm_now_.load(std::memory_order_relaxed); }
  bool critical() const { return core() >= critical_celsius || hbm() >= critical_celsius; }
  // Full clock over the present one, >= 1.
  double stretch() const { return stretch_.load(std::memory_order_relaxed); }

 private:
  void heat(double seconds, double core_load, double hbm_load);
  void throttle(double seconds);
  void publish();

  FaultBoard& faults_;
  mutable std::mutex mutex_;
  double ambient_, core_, hbm_;
  double climb_ = 0;   // fault F11
  double smooth_ = 0;  // load
  double throttled_s_ = 0;
  bool brownout_ = false;
  State state_{};
  std::atomic<double> core_now_, hbm_now_, stretch_{1};
};

}  // namespace kz::softtpu
