// SPDX-License-Identifier: GPL-2.0-or-later
// What an engine is made of: the core that commands run on, and the clockwork behind telemetry.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>

#include "tools/softtpu/engine.h"
#include "tools/softtpu/exec_core.h"

namespace kz::softtpu {

struct Engine::Impl {
  Impl(const EngineOptions& o, FaultBoard& f, HostBus& b) : core(o, f, b) {}

  // engine_telemetry.cc
  uint64_t events();     // changes with everything that the block must show at once
  void refresh_block();  // rewrites the telemetry block
  void brownout(double load);
  void beat();

  Core core;
  std::function<void()> unlink;  // from the fault board, which outlives us

  std::mutex telemetry_mutex;
  kz_telemetry block{};
  kz_telemetry frozen{};  // fault F09
  bool is_frozen = false;
  uint64_t shown_events = 0;
  Clock::time_point written{};

  std::mutex tick_mutex;
  Clock::time_point last_tick = Clock::now(), last_beat{}, loaded_since{};
  std::array<int64_t, BusyMeter::kinds> last_busy{};
  std::atomic<int64_t> lost_until{0};  // steady clock, ns: fault F20
};

}  // namespace kz::softtpu
