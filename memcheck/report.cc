// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/report.h"

#include <fmt/format.h>

#include <set>

#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

std::string hex(uint64_t v) { return fmt::format("0x{:x}", v); }

std::vector<BadWord> bad_words(Arena& arena, const MarchOutcome& out) {
  // The physical map costs a query a page: enough hits for a shape, not all.
  constexpr size_t enough = 512;
  std::vector<BadWord> words;
  size_t step = std::max<size_t>(1, out.hits.size() / enough);
  for (size_t i = 0; i < out.hits.size(); i += step)
    words.push_back({arena.physical(out.hits[i].addr), out.hits[i].expected, out.hits[i].read});
  return words;
}

bool in_arena(const Arena& arena, uint64_t addr) {
  for (const Region& r : arena.regions())
    if (addr >= r.addr.value && addr < r.end().value) return addr % 8 == 0;
  return false;
}

// A word of an own-address test that holds another word's address was written through it. "1" is the
// complement.
void report_decoder(Arena& arena, const MarchOutcome& out) {
  if (!out.background.own_address) return;
  std::set<uint64_t> shown;
  for (const Hit& h : out.hits) {
    if (shown.size() >= 4) return;
    uint64_t other = h.read ^ out.background.pattern;
    if (!in_arena(arena, other)) other = ~h.read ^ out.background.pattern;
    if (!in_arena(arena, other) || other == h.addr || !shown.insert(h.addr).second) continue;
    test::evidence(ev::address_fault,
                   {{"kind", "alias"},
                    {"addresses", {hex(arena.physical(h.addr)), hex(arena.physical(other))}},
                    {"differ", hex(arena.physical(h.addr) ^ arena.physical(other))}});
  }
}

void report_words(Arena& arena, MarchRunner& runner, const MarchTest& test, const MarchOutcome& out) {
  const Hit& first = out.hits.front();
  auto words = bad_words(arena, out);
  Shape shape = shape_of(words, arena.geometry(), out.background.own_address);
  std::string reread = runner.reread(test, out);
  double celsius = arena.device().telemetry().hbm_celsius.value_or(0);
  test::evidence(ev::march_mismatch,
                 {{"test", out.test},
                  {"element", out.elements.at(first.element)},
                  {"op", first.op},
                  {"addr", hex(arena.physical(first.addr))},
                  {"place", arena.place(first.addr)},
                  {"expected", hex(first.expected)},
                  {"read", hex(first.read)},
                  {"xor", hex(first.expected ^ first.read)},
                  {"background", out.background.own_address ? "own address" : hex(out.background.pattern)},
                  {"shape", to_string(shape)},
                  {"reread", reread},
                  {"celsius", celsius},
                  {"count", out.mismatches}});
  report_decoder(arena, out);
  ADD_FAILURE() << fmt::format(
      "march {}: {} wrong reads, first in element {} op {} at {}: expected {:#018x}, read {:#018x} (xor "
      "{:#x}); {}, {}",
      out.test, out.mismatches, out.elements.at(first.element), first.op, arena.place(first.addr),
      first.expected, first.read, first.expected ^ first.read, to_string(shape), reread);
}

}  // namespace

void report(Arena& arena, MarchRunner& runner, const MarchTest& test, const MarchOutcome& out) {
  for (const auto& p : out.poison) {
    auto place = kz_hbm_split(arena.physical(p.addr.value), arena.geometry().value_or(KZ_GEOM_DEFAULT));
    test::evidence(ev::ecc, {{"what", "poison"},
                             {"channel", place.channel},
                             {"delta", 1},
                             {"addr", hex(arena.physical(p.addr.value))},
                             {"bytes", p.size}});
    ADD_FAILURE() << fmt::format("march {}: element {} met uncorrectable data within {} bytes at {}",
                                 out.test, out.elements.at(p.element), p.size, arena.place(p.addr.value));
  }
  if (!out.hits.empty()) report_words(arena, runner, test, out);
  if (out.hits.empty() && out.mismatches > 0) {
    test::evidence(ev::march_mismatch,
                   {{"test", out.test}, {"count", out.mismatches}, {"shape", "scattered"}});
    ADD_FAILURE() << fmt::format("march {}: {} wrong reads, none of them logged", out.test, out.mismatches);
  }
}

bool march_and_report(Arena& arena, MarchRunner& runner, const MarchTest& test, const Background& background,
                      const std::vector<Region>& regions) {
  auto out = runner.run(test, background, regions);
  double covered = 800.0 * static_cast<double>(out.cells) / static_cast<double>(arena.size());
  test::metric(fmt::format("march_{}_covered", out.test), covered, "%");
  report(arena, runner, test, out);
  return out.clean();
}

}  // namespace kz::memcheck
