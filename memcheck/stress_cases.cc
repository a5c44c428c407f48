// SPDX-License-Identifier: GPL-2.0-or-later
// Memory under conditions: hot, hammered, and through the DMA path.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "memcheck/hammer.h"
#include "memcheck/heat.h"
#include "memcheck/report.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

using namespace test;
using std::chrono::duration;

KZ_TEST(hbm, march_hot,
        {.meaning = "March C- at working temperature, after matmuls heated the device",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march, Cap::telemetry, Cap::matmul_f32},
         .limit = 60s}) {
  auto warm = device().create_context();
  Heater heater(device(), *warm);
  Heat heat = heater.until_plateau(duration<double>(4 * scale()));
  metric("hot_march_celsius", heat.end_celsius, "C");
  Arena arena(device());
  MarchRunner runner(arena);
  runner.set_between([&] { heater.step(); });
  MarchTest test = march("C-");
  march_and_report(arena, runner, test, {.pattern = 0x5555555555555555},
                   runner.affordable(test, duration<double>(1 * scale())));
}

KZ_TEST(hbm, row_hammer,
        {.meaning = "rows keep their data while the rows beside them are opened thousands of times",
         .level = 4,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march, Cap::hbm_physical},
         .limit = 60s}) {
  if (!caps().limits.hbm_geometry) skip("the device does not tell how an address falls into rows");
  Arena arena(device());
  HammerPlan plan{.accesses = 24000, .budget = duration<double>(3 * scale())};
  HammerOutcome out = hammer(arena, plan, rng());
  metric("hammered_rows", static_cast<double>(out.rows), "rows");
  metric("hammer_covered", 100 * out.covered, "%");
  for (const Hit& h : out.hits) {
    evidence(ev::march_mismatch, {{"test", "row hammer"},
                                  {"element", "r"},
                                  {"op", 0},
                                  {"addr", fmt::format("0x{:x}", h.addr)},
                                  {"expected", fmt::format("0x{:x}", h.expected)},
                                  {"read", fmt::format("0x{:x}", h.read)},
                                  {"xor", fmt::format("0x{:x}", h.expected ^ h.read)},
                                  {"shape", out.hits.size() == 1 ? "cell" : "row"},
                                  {"reread", "hard"},
                                  {"celsius", device().telemetry().hbm_celsius.value_or(0)},
                                  {"count", out.hits.size()}});
    ADD_FAILURE() << fmt::format("{} changed from {:#x} to {:#x} while its neighbours were read {} times",
                                 place_text(h.addr, arena.geometry()), h.expected, h.read, plan.accesses);
    break;
  }
}

// Words that tell the address they belong to.
void fill_tagged(std::span<std::byte> out, uint64_t base, uint64_t flip) {
  for (uint64_t i = 0; i < out.size(); i += 8) {
    uint64_t word = ((base + i) * 0x2545f4914f6cdd1du) ^ flip;
    std::memcpy(out.data() + i, &word, 8);
  }
}

KZ_TEST(hbm, through_dma,
        {.meaning = "HBM keeps addresses and their complement through the DMA engine, written piece by "
                    "piece, read later",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::march},
         .limit = 60s}) {
  constexpr uint64_t piece = uint64_t{1} << 20;
  Arena arena(device());
  auto host = device().dma_buffer({.size = {piece}});
  std::vector<std::byte> want(piece);
  auto pieces = arena.spread(static_cast<uint64_t>(scale() * 128) << 20, piece);
  for (uint64_t flip : {uint64_t{0}, ~uint64_t{0}}) {
    for (const Region& r : pieces) {
      fill_tagged(host->bytes().first(r.size), r.addr.value, flip);
      run_ok(arena.queue(), {cmd::Copy{at(host->iova()), at(r.addr), r.size}});
    }
    for (const Region& r : pieces) {
      auto fetch = [&] { run_ok(arena.queue(), {cmd::Copy{at(r.addr), at(host->iova()), r.size}}); };
      fill_tagged(want, r.addr.value, flip);
      fetch();
      auto wrong = check_transfer({.path = "host>hbm>host",
                                   .want = std::span(want).first(r.size),
                                   .got = host->bytes().first(r.size),
                                   .before = {},
                                   .reread = fetch,
                                   .queue = &arena.queue(),
                                   .cells = r.addr,
                                   .cells_len = r.size});
      if (wrong.empty()) continue;
      ADD_FAILURE() << "HBM from " << arena.place(r.addr.value) << ": " << wrong;
      return;
    }
  }
  metric("through_dma_covered",
         100 * static_cast<double>(pieces.size() * piece) / static_cast<double>(arena.size()), "%");
}

}  // namespace
}  // namespace kz::memcheck
