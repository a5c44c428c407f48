// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/order.h"

#include <algorithm>
#include <array>

namespace kz::gauntlet {
namespace {

constexpr std::array<std::string_view, 24> table = {
    "identify.*",         // is it alive, and what does it say of itself
    "pci.*",              // configuration space
    "queue.*",            // commands come and go by the rules: all else stands on that
    "hbm.address_lines",  // the memory, next to it: no DMA, no compute
    "hbm.banks_apart",
    "hbm.own_address",
    "hbm.march_ss",
    "hbm.march_sl",
    "hbm.word_backgrounds",
    "hbm.retention",
    "hbm.ecc.*",
    "hbm.hammer_reads",
    "hbm.row_hammer",
    "dma.*",  // moving it
    "hbm.through_dma",
    "matmul.*",  // computing with it
    "vector.*",
    "hbm.alloc.*",  // sharing it
    "context.*",
    "firmware.*",
    "boundary.*",     // misuse, resets, dead clients
    "hbm.march_hot",  // what takes long
    "soak.*",
    "*",
};

size_t rank(const TestDeclaration& t) {
  for (size_t i = 0; i < table.size(); ++i)
    if (glob_match(table[i], t.id)) return i;
  return table.size();
}

bool dear(const TestDeclaration& t) { return t.level == 3; }

}  // namespace

std::span<const std::string_view> order_table() { return table; }

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
