// SPDX-License-Identifier: GPL-2.0-or-later
// Groups failing addresses into the piece of the memory that explains them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shim/uapi/kz_hbm.h"

namespace kz::memcheck {

struct BadWord {
  uint64_t addr = 0;  // physical where known, 8-byte aligned
  uint64_t expected = 0;
  uint64_t read = 0;
  uint64_t bits() const { return expected ^ read; }
};

enum class Shape { cell, row, column, lane, bank, channel, address_line, scattered };
std::string_view to_string(Shape shape);

// own_address: the words held their own address XOR a constant, so a word that holds another's address shows
// the decoder. Without a geometry only cell, lane, address_line and scattered can be told.
Shape shape_of(std::span<const BadWord> words, std::optional<uint32_t> geometry, bool own_address = false);

// "0x40 channel 1 pc 0 bank 0 row 0 column 0", or the address alone.
std::string place_text(uint64_t addr, std::optional<uint32_t> geometry);

}  // namespace kz::memcheck
