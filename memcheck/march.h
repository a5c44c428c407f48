// SPDX-License-Identifier: GPL-2.0-or-later
// March tests as data, in the notation of the field (van de Goor, "Testing Semiconductor Memories", 1991).
//
//   ⇕w0;⇑r0w1;⇓r1w0        MATS+
//
// ⇑ up, ⇓ down, ⇕ either order; r0/w0 is the background, r1/w1 its complement; "Del" is an element that
// waits. Braces, parentheses, commas and blanks are decoration. ASCII: ^ up, v down, * either.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shim/command.h"

namespace kz::memcheck {

enum class Order : uint8_t { either, up, down };

struct MarchElement {
  Order order = Order::either;
  std::vector<MarchOp> ops;  // 1 .. KZ_MARCH_OPS
  bool pause = false;        // an element that waits; it has no ops
  bool operator==(const MarchElement&) const = default;
};

struct MarchTest {
  std::string name;
  std::vector<MarchElement> elements;
  unsigned ops_per_cell() const;
};

// Throws Error(usage) with the place and what is wrong: unknown letter, more than KZ_MARCH_OPS ops, an empty
// element, a read that does not expect what the element before left there.
MarchTest parse_march(std::string_view name, std::string_view notation);
std::string to_string(const MarchElement& element);
std::string to_string(const MarchTest& test);

struct NamedMarch {
  std::string_view name;
  std::string_view notation;
  std::string_view source;  // where it comes from
};
// MATS+, C-, PMOVI, LR, SS, SL, retention.
std::span<const NamedMarch> march_table();
// Throws Error(usage) for a name the table does not have.
MarchTest march(std::string_view name);

// Backgrounds that tell every pair of bits of a 64-bit word apart: 0 and 1 + log2(64) stripes.
std::span<const uint64_t> word_backgrounds();

}  // namespace kz::memcheck
