// SPDX-License-Identifier: GPL-2.0-or-later
// One command there and back, beside the least that two wake-ups can cost on this machine.
#include <benchmark/benchmark.h>
#include <poll.h>

#include <thread>

#include "shim/base/fd.h"
#include "tests/bench/bars.h"

namespace kz::bench {

static void nop_round_trip(benchmark::State& state) {
  auto context = device().create_context();
  auto queue = context->open_queue();
  for (auto _ : state) run_ok(*queue, {cmd::Nop{}});
  state.SetItemsProcessed(state.iterations());
}

static void nop_batch_of_16(benchmark::State& state) {
  auto context = device().create_context();
  auto queue = context->open_queue({.order = 5});
  for (auto _ : state) {
    for (int i = 0; i < 16; ++i) queue->submit({cmd::Nop{}}, true);
    queue->ring();
    for (size_t done = 0; done < 16;) {
      auto batch = queue->wait(Deadline(5s));
      if (batch.empty()) return state.SkipWithError("no completion within 5 s");
      done += batch.size();
    }
  }
  state.SetItemsProcessed(state.iterations() * 16);
}

// Two threads that wake each other by eventfd: the floor for doorbell and interrupt without any work between.
static void eventfd_ping_pong(benchmark::State& state) {
  Fd there = make_eventfd(false), back = make_eventfd(false);
  std::atomic<bool> stop{false};
  std::thread peer([&] {
    for (;;) {
      drain_eventfd(there.get());
      if (stop) return;
      signal_eventfd(back.get());
    }
  });
  for (auto _ : state) {
    signal_eventfd(there.get());
    drain_eventfd(back.get());
  }
  stop = true;
  signal_eventfd(there.get());
  peer.join();
  state.SetItemsProcessed(state.iterations());
}

std::vector<Bar> register_roundtrip() {
  benchmark::RegisterBenchmark("nop_round_trip", nop_round_trip)->UseRealTime();
  benchmark::RegisterBenchmark("nop_batch_of_16", nop_batch_of_16)->UseRealTime();
  benchmark::RegisterBenchmark("eventfd_ping_pong", eventfd_ping_pong)->UseRealTime();
  return {{"round_trip_over_eventfd_ping_pong", "nop_round_trip", "eventfd_ping_pong", '<', 2.5, true},
          {"batched_nops_over_single", "nop_batch_of_16", "nop_round_trip", '>', 2.0}};
}

}  // namespace kz::bench
