// SPDX-License-Identifier: GPL-2.0-or-later
// March tests over all HBM that can be had, run by the device next to its memory.
#include "memcheck/report.h"
#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

using namespace test;
using std::chrono::duration;

// Runs a march of the table over what the budget allows, and all of it where that is enough.
void table_march(Device& device, std::string_view name, duration<double> budget, const Background& bg = {}) {
  Arena arena(device);
  MarchRunner runner(arena);
  MarchTest test = march(name);
  march_and_report(arena, runner, test, bg, runner.affordable(test, budget));
}

KZ_TEST(
    hbm, own_address,
    {.meaning = "every word of HBM is there once: it keeps its own address and the complement, up and down",
     .level = 2,
     .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march},
     .limit = 60s}) {
  Arena arena(device());
  MarchRunner runner(arena);
  MarchTest test = parse_march("own-address", "⇑w0;⇑r0w1;⇓r1w0;⇑r0");
  march_and_report(arena, runner, test, {.pattern = 0, .own_address = true},
                   runner.affordable(test, duration<double>(8 * scale())));
}

KZ_TEST(hbm, march_ss,
        {.meaning = "March SS: all simple static faults of one and two cells",
         .level = 2,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march},
         .limit = 60s}) {
  table_march(device(), "SS", duration<double>(8 * scale()));
}

KZ_TEST(hbm, march_sl,
        {.meaning = "March SL: linked faults of two and three cells, which hide behind each other",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march},
         .limit = 60s}) {
  table_march(device(), "SL", duration<double>(3 * scale()));
}

KZ_TEST(hbm, word_backgrounds,
        {.meaning = "March C- with backgrounds that tell every pair of bits of a word apart",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march},
         .limit = 60s}) {
  Arena arena(device());
  MarchRunner runner(arena);
  MarchTest test = march("C-");
  auto backgrounds = word_backgrounds().subspan(1);  // solid is March SS's
  auto regions =
      runner.affordable(test, duration<double>(4 * scale()), static_cast<unsigned>(backgrounds.size()));
  for (uint64_t pattern : backgrounds)
    if (!march_and_report(arena, runner, test, {.pattern = pattern}, regions)) break;
}

KZ_TEST(hbm, retention,
        {.meaning = "cells keep both states over a pause",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march, Cap::timestamp},
         .limit = 60s}) {
  Arena arena(device());
  MarchRunner runner(arena);
  runner.set_pause(std::chrono::milliseconds(static_cast<int>(400 * scale())));
  MarchTest test = march("retention");
  auto regions = runner.affordable(parse_march("cost", "⇕w0;⇕r0w1;⇕r1"), duration<double>(2 * scale()));
  march_and_report(arena, runner, test, {}, regions);
}

KZ_TEST(hbm, hammer_reads,
        {.meaning = "millions of reads of the same cells give the same answer and leave them alone",
         .level = 3,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::march},
         .limit = 60s}) {
  Arena arena(device());
  MarchRunner runner(arena);
  MarchTest test = parse_march("read-repeat",
                               "⇕w0;⇑r0r0r0r0r0r0r0r0r0r0r0r0;⇓r0r0r0r0r0r0r0r0r0r0r0r0;⇕w1;"
                               "⇑r1r1r1r1r1r1r1r1r1r1r1r1");
  march_and_report(arena, runner, test, {.pattern = 0xa5a5a5a55a5a5a5a},
                   runner.affordable(test, duration<double>(2 * scale())));
}

}  // namespace
}  // namespace kz::memcheck
