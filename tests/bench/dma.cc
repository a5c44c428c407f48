// SPDX-License-Identifier: GPL-2.0-or-later
// DMA through shared memory beside memcpy over buffers of the same kind and size.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>

#include "shim/base/fd.h"
#include "tests/bench/bars.h"

namespace kz::bench {

static constexpr unsigned in_flight = 4;

// Copies `size` bytes host -> HBM (or back); `in_flight` commands over distinct buffers are under way at all
// times, and their completions are polled, so that what is measured is bandwidth and neither round trips nor
// the wake-up that an interrupt costs, which roundtrip.cc has.
static void dma_copy(benchmark::State& state, bool to_device) {
  auto size = static_cast<uint64_t>(state.range(0));
  auto context = device().create_context();
  auto queue = context->open_queue({.order = 4, .interrupts = false});
  auto host = device().dma_buffer({.size = {size * in_flight}});
  auto hbm = context->alloc({size * in_flight});
  std::memset(host->bytes().data(), 0x5a, host->bytes().size());
  auto submit = [&](unsigned i) {
    Place h = at(host->iova() + i * size), d = at(hbm->addr() + i * size);
    queue->submit({cmd::Copy{to_device ? h : d, to_device ? d : h, size}}, true);
  };
  for (unsigned i = 0; i < in_flight; ++i)
    run_ok(*queue, {cmd::Copy{at(host->iova() + i * size), at(hbm->addr() + i * size), size}});
  unsigned next = 0;  // one queue completes in order: the oldest buffer is the free one
  for (; next < in_flight; ++next) submit(next);
  queue->ring();
  size_t ahead = 0;  // completions that came together with one already counted
  for (auto _ : state) {
    if (ahead == 0) {
      ahead = queue->wait(Deadline(5s)).size();
      if (ahead == 0) return state.SkipWithError("no completion within 5 s");
      for (size_t i = 0; i < ahead; ++i) submit(next++ % in_flight);
      queue->ring();
    }
    --ahead;
  }
  state.SetBytesProcessed(static_cast<int64_t>(size) * state.iterations());
  while (queue->outstanding() > 0)
    if (queue->wait(Deadline(5s)).empty()) return state.SkipWithError("no completion within 5 s");
}
static void dma_to_device(benchmark::State& state) { dma_copy(state, true); }
static void dma_from_device(benchmark::State& state) { dma_copy(state, false); }

static void memcpy_shared(benchmark::State& state) {
  auto size = static_cast<uint64_t>(state.range(0));
  Fd a = make_memfd("bench-a", {size * in_flight}), b = make_memfd("bench-b", {size * in_flight});
  Mapping from(a.get(), 0, {size * in_flight}, true, "bench-a"),
      to(b.get(), 0, {size * in_flight}, true, "bench-b");
  std::memset(from.data(), 0x5a, from.size());
  std::memset(to.data(), 0, to.size());
  for (auto _ : state) {
    for (unsigned i = 0; i < in_flight; ++i) {
      std::memcpy(to.data() + i * size, from.data() + i * size, size);
      benchmark::ClobberMemory();
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(size * in_flight) * state.iterations());
}

std::vector<Bar> register_dma() {
  std::vector<Bar> bars;
  for (int64_t size : {int64_t{1} << 20, int64_t{4} << 20, int64_t{16} << 20}) {
    benchmark::RegisterBenchmark("dma_to_device", dma_to_device)->Arg(size)->UseRealTime();
    benchmark::RegisterBenchmark("dma_from_device", dma_from_device)->Arg(size)->UseRealTime();
    benchmark::RegisterBenchmark("memcpy_shared", memcpy_shared)->Arg(size)->UseRealTime();
    for (std::string subject : {"dma_to_device", "dma_from_device"})
      bars.push_back({fmt::format("{}_over_memcpy_{}MiB", subject, size >> 20),
                      fmt::format("{}/{}", subject, size), fmt::format("memcpy_shared/{}", size), '>', 0.8});
  }
  return bars;
}

}  // namespace kz::bench
