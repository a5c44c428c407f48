// SPDX-License-Identifier: GPL-2.0-or-later
// The firmware's housekeeping: heat, heartbeat and the telemetry block.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/softtpu/engine_impl.h"

namespace kz::softtpu {
namespace {

constexpr auto beat_period = std::chrono::milliseconds(40);
constexpr auto block_period = std::chrono::milliseconds(100);
constexpr double brownout_load = 0.4;  // of the shaped load: busy about a sixth of the time

int64_t steady_ns() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }
int32_t milli(double v) { return static_cast<int32_t>(std::lround(v * 1000)); }

void put_thermal(const Thermal::State& t, kz_telemetry& b) {
  b.temp_core_mc = milli(t.core);
  b.temp_hbm_mc = milli(t.hbm);
  b.temp_limit_mc = milli(Thermal::limit_celsius);
  b.temp_critical_mc = milli(Thermal::critical_celsius);
  b.power_mw = static_cast<uint32_t>(milli(t.power_w));
  b.power_cap_mw = static_cast<uint32_t>(milli(Thermal::power_cap_w));
  b.clock_khz = static_cast<uint32_t>(milli(t.clock_mhz));
  b.clock_max_khz = static_cast<uint32_t>(milli(Thermal::clock_max_mhz));
  b.fan_rpm = t.fan_rpm;
  b.fan_present = 1;
  b.throttle = t.throttle;
  b.throttle_ms = t.throttle_ms;
}

void put_memory(Core& core, kz_telemetry& b) {
  Allocator::Stat stat = core.memory.stat();
  b.hbm_bytes = core.hbm.size();
  b.hbm_free_bytes = stat.free_pages * Hbm::page;
  b.contexts = stat.contexts;
  b.pages_retired = static_cast<uint32_t>(stat.retired_pages);
  b.pages_retire_max = Allocator::pages_retire_max;
  const Ecc& ecc = core.hbm.ecc();
  b.ecc_channels = ecc.enabled() ? ecc.channels() : 0;
  for (uint32_t c = 0; c < b.ecc_channels; ++c) {
    b.ecc_ce[c] = ecc.correctable(c);
    b.ecc_ue[c] = ecc.uncorrectable(c);
  }
}

}  // namespace

uint64_t Engine::Impl::events() {
  return core.hbm.ecc().events() + core.memory.changes() + core.fw.resets.load(std::memory_order_relaxed);
}

void Engine::Impl::refresh_block() {
  core.memory.retire_bad_pages();
  std::lock_guard lock(telemetry_mutex);
  shown_events = events();
  kz_telemetry b{};
  b.seq = block.seq + 2;
  b.version = KZ_TEL_VERSION;
  b.size = sizeof b;
  b.time_ns = core.device_ns();
  put_thermal(core.thermal.state(), b);
  put_memory(core, b);
  b.heartbeat = core.fw.heartbeat;
  b.fw_version = core.fw.version;
  if (const Fault* f = core.faults.active(Row::F07))
    b.fw_version = KZ_FW_VERSION(static_cast<uint32_t>(f->uparam("major")),
                                 static_cast<uint32_t>(f->uparam("minor")), 0u);
  b.reset_count = core.fw.resets;
  b.reset_reason = core.fw.reason;
  b.commands = core.commands.load(std::memory_order_relaxed);
  b.dma_bytes = core.dma_bytes.load(std::memory_order_relaxed);
  block = b;
  written = Clock::now();
}

void Engine::Impl::brownout(double load) {
  const Fault* f = core.faults.active(Row::F20);
  auto now = Clock::now();
  if (f == nullptr || load < brownout_load || core.fw.fatal) {
    loaded_since = {};
    return;
  }
  if (loaded_since == Clock::time_point{}) loaded_since = now;
  if (now - loaded_since < std::chrono::milliseconds(f->uparam("load_ms")) ||
      core.faults.due(Row::F20) == nullptr)
    return;
  loaded_since = {};
  lost_until = steady_ns() + static_cast<int64_t>(f->uparam("down_ms")) * 1'000'000;
  core.thermal.set_brownout(true);
  core.fw.fatal_reason = KZ_RR_POWER_LOSS;
  core.fw.fatal = true;
}

void Engine::Impl::beat() {
  auto now = Clock::now();
  if (now - last_beat < beat_period || core.fw.fatal) return;
  last_beat = now;
  if (core.faults.active(Row::F01) == nullptr) ++core.fw.heartbeat;
}

void Engine::tick() {
  std::lock_guard lock(impl_->tick_mutex);
  Core& core = impl_->core;
  auto now = Clock::now();
  std::chrono::duration<double> dt = now - impl_->last_tick;
  if (dt.count() <= 0) return;
  impl_->last_tick = now;
  auto busy = core.busy.sample();
  double share[BusyMeter::kinds];
  for (int k = 0; k < BusyMeter::kinds; ++k)
    share[k] = std::max<double>(0, static_cast<double>(busy[k] - impl_->last_busy[k]) / (dt.count() * 1e9));
  impl_->last_busy = busy;
  core.thermal.step(dt.count(), {share[BusyMeter::compute], share[BusyMeter::dma], share[BusyMeter::other]});
  core.hbm.set_celsius(core.thermal.hbm());
  impl_->brownout(core.thermal.state().load);
  if (core.thermal.critical() && !core.fw.fatal) set_fatal(KZ_RR_THERMAL);
  impl_->beat();
  bool dead = core.fw.fatal && core.fw.fatal_reason == KZ_RR_FW_CRASH;
  bool old;
  {
    std::lock_guard telemetry(impl_->telemetry_mutex);
    old = now - impl_->written >= block_period || impl_->shown_events != impl_->events();
  }
  if (old && !dead) impl_->refresh_block();
}

void Engine::read_telemetry(kz_telemetry& out) {
  Core& core = impl_->core;
  if (core.faults.due(Row::F10) != nullptr) {
    std::memset(&out, 0xff, sizeof out);
    return;
  }
  bool dead = core.fw.fatal && core.fw.fatal_reason == KZ_RR_FW_CRASH, old;
  {
    std::lock_guard lock(impl_->telemetry_mutex);
    old = impl_->shown_events != impl_->events();
  }
  if (old && !dead) impl_->refresh_block();
  std::lock_guard lock(impl_->telemetry_mutex);
  if (core.faults.active(Row::F09) == nullptr) {
    impl_->is_frozen = false;
    out = impl_->block;
    return;
  }
  if (!impl_->is_frozen) impl_->frozen = impl_->block;
  impl_->is_frozen = true;
  out = impl_->frozen;
}

void Engine::set_ambient(double celsius) { impl_->core.thermal.set_ambient(celsius); }

void Engine::set_temperature(double celsius) {
  impl_->core.thermal.set_temperature(celsius);
  impl_->core.hbm.set_celsius(celsius);
}

bool Engine::link_lost() const { return impl_->lost_until.load(std::memory_order_relaxed) > steady_ns(); }

}  // namespace kz::softtpu
