// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/thermal.h"

#include <algorithm>
#include <cmath>

namespace kz::softtpu {
namespace {

constexpr double idle_core = 8, idle_hbm = 10;  // above the room, kelvin
constexpr double load_core = 40, load_hbm = 44;
constexpr double tau_core = 2, tau_hbm = 3, tau_load = 0.15;
constexpr double no_fan = 1.5;  // without air the rise is this much larger
constexpr double throttled_clock = 0.6;
constexpr double hysteresis = 3;

// Half the time busy is already most of the heat: a chip that works in bursts does not cool down in between.
double shaped(double u) { return (1 - std::exp(-3 * std::clamp(u, 0.0, 1.0))) / (1 - std::exp(-3.0)); }

void relax(double& value, double target, double seconds, double tau) {
  value += (target - value) * (1 - std::exp(-seconds / tau));
}

}  // namespace

Thermal::Thermal(double ambient, FaultBoard& faults)
    : faults_(faults), ambient_(ambient), core_(ambient + idle_core), hbm_(ambient + idle_hbm) {
  state_.clock_mhz = clock_max_mhz;
  step(0, {});
}

void Thermal::heat(double seconds, double core_load, double hbm_load) {
  double rise = faults_.active(Row::F14) != nullptr ? no_fan : 1;
  const Fault* climbing = faults_.active(Row::F11);
  climb_ = climbing != nullptr ? climb_ + climbing->param("celsius_per_s") * seconds : 0;
  relax(core_, ambient_ + rise * (idle_core + load_core * core_load) + climb_, seconds, tau_core);
  relax(hbm_, ambient_ + rise * (idle_hbm + load_hbm * hbm_load) + climb_, seconds, tau_hbm);
}

void Thermal::throttle(double seconds) {
  bool was = (state_.throttle & KZ_THROTTLE_THERMAL) != 0;
  bool hot = std::max(core_, hbm_) >= limit_celsius - (was ? hysteresis : 0);
  double ratio = hot ? throttled_clock : 1;
  if (const Fault* f = faults_.active(Row::F12)) {
    hot = true;
    ratio = std::min(ratio, f->param("clock_percent") / 100);
  }
  if (brownout_) ratio = std::min(ratio, throttled_clock);
  state_.throttle = (hot ? KZ_THROTTLE_THERMAL : 0) | (brownout_ ? KZ_THROTTLE_BROWNOUT : 0);
  state_.clock_mhz = clock_max_mhz * ratio;
  stretch_.store(1 / ratio, std::memory_order_relaxed);
  if (state_.throttle != 0) throttled_s_ += seconds;
  state_.throttle_ms = static_cast<uint32_t>(throttled_s_ * 1000);
}

void Thermal::step(double seconds, const Load& load) {
  std::lock_guard lock(mutex_);
  double core_load = shaped(load.compute + 0.7 * load.dma + 0.2 * load.other);
  double hbm_load = shaped(load.dma + 0.8 * load.compute + 0.1 * load.other);
  relax(smooth_, std::max(core_load, hbm_load), seconds, tau_load);
  state_.load = smooth_;
  heat(seconds, core_load, hbm_load);
  throttle(seconds);
  state_.power_w = 45 + 250 * smooth_ * state_.clock_mhz / clock_max_mhz;
  if (const Fault* f = faults_.active(Row::F13))
    state_.power_w = power_cap_w * (1 + f->param("percent") / 100);
  double hottest = std::max(core_, hbm_);
  bool stopped = faults_.active(Row::F14) != nullptr;
  state_.fan_rpm =
      stopped ? 0 : static_cast<uint32_t>(std::clamp(1200 + 60 * (hottest - 35), 1200.0, 5400.0));
  publish();
}

void Thermal::publish() {
  state_.core = core_;
  state_.hbm = hbm_;
  core_now_.store(core_, std::memory_order_relaxed);
  hbm_now_.store(hbm_, std::memory_order_relaxed);
}

void Thermal::set_ambient(double celsius) {
  std::lock_guard lock(mutex_);
  ambient_ = celsius;
}

void Thermal::set_temperature(double celsius) {
  std::lock_guard lock(mutex_);
  core_ = hbm_ = celsius;
  publish();
}

void Thermal::set_brownout(bool on) {
  std::lock_guard lock(mutex_);
  brownout_ = on;
}

Thermal::State Thermal::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace kz::softtpu
