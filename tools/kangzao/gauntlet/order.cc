// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/order.h"

#include <algorithm>
#include <array>

namespace kz::gauntlet {
namespace {

// Measured times and long loads, which say least of a cause: always last, in this order.
constexpr std::array<std::string_view, 6> late = {"hbm.march_hot", "matmul.hot",    "queue.latency",
                                                  "queue.batches", "dma.bandwidth", "soak.*"};

constexpr std::array<std::string_view, 24> table = {
    "identify.*",         // is it alive, and what does it say of itself
    "pcie.*",             // configuration space
    "hbm.address_lines",  // the memory, next to it: no DMA, no compute
    "hbm.banks_apart",
    "hbm.own_address",
    "hbm.march_ss",
    "dma.sizes",  // moving it: the tests that tell the ways of failing apart come first
    "dma.visible_at_completion",
    "dma.nothing_after_completion",
    "dma.*",
    "queue.*",  // order and interrupts, which are seen through moved data
    "hbm.march_sl",
    "hbm.through_dma",
    "hbm.word_backgrounds",
    "hbm.retention",
    "hbm.row_hammer",
    "hbm.alloc.pages_not_shared",  // whose word is it that went bad
    "hbm.ecc.*",
    "hbm.hammer_reads",
    "matmul.*",  // computing with it
    "vector.*",
    "hbm.alloc.*",  // sharing it
    "context.*",
    "*",  // firmware, misuse, resets, dead clients
};

size_t rank(const TestDeclaration& t) {
  for (size_t i = 0; i < late.size(); ++i)
    if (glob_match(late[i], t.id)) return table.size() + i;
  for (size_t i = 0; i < table.size(); ++i)
    if (glob_match(table[i], t.id)) return i;
  return table.size();
}

bool dear(const TestDeclaration& t) { return t.level == 3; }

}  // namespace

std::vector<std::string_view> order_table() {
  std::vector<std::string_view> all(table.begin(), table.end());
  all.insert(all.end(), late.begin(), late.end());
  return all;
}

std::vector<TestDeclaration> ordered_tests(std::vector<TestDeclaration> tests) {
  std::erase_if(tests, [](const TestDeclaration& t) {
    return t.suite.starts_with("selftest") || t.has_label("root") || t.has_label("kernel") ||
           t.has_label("host");
  });
  std::ranges::stable_sort(tests, [](const TestDeclaration& a, const TestDeclaration& b) {
    return std::tuple(rank(a), dear(a), a.level, a.id) < std::tuple(rank(b), dear(b), b.level, b.id);
  });
  return tests;
}

}  // namespace kz::gauntlet
