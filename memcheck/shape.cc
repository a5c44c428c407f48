// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/shape.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <set>

namespace kz::memcheck {
namespace {

// What all failing words share, and how many different values they have where they do not.
struct Spread {
  std::set<uint32_t> channels, pseudos, banks, rows, columns;
  std::set<uint64_t> words;
  uint64_t any_bit = 0;

  Spread(std::span<const BadWord> bad, uint32_t geometry) {
    for (const BadWord& w : bad) {
      auto p = kz_hbm_split(w.addr, geometry);
      channels.insert(p.channel);
      pseudos.insert(p.pseudo);
      banks.insert(p.bank);
      rows.insert(p.row);
      columns.insert(p.column);
      words.insert(w.addr);
      any_bit |= w.bits();
    }
  }
  bool one_channel() const { return channels.size() == 1; }
  bool one_bank() const { return one_channel() && pseudos.size() == 1 && banks.size() == 1; }
};

// Fewer failing words than this say nothing about a lane, a bank or a channel.
constexpr size_t enough = 16;

bool decoder_shows(std::span<const BadWord> words) {
  size_t by_one_line = 0;
  for (const BadWord& w : words) by_one_line += std::has_single_bit(w.bits());
  // A cell fault turns one fixed data bit; a decoder fault turns the address bit, which is the same data bit
  // in an own-address background, in both directions and over whole blocks.
  if (words.size() < enough || by_one_line < words.size() * 9 / 10) return false;
  std::set<bool> directions;
  for (const BadWord& w : words) directions.insert((w.expected & w.bits()) != 0);
  return directions.size() == 2;
}

}  // namespace

std::string_view to_string(Shape shape) {
  static constexpr std::array<std::string_view, 8> names = {"cell", "row",     "column",       "lane",
                                                            "bank", "channel", "address_line", "scattered"};
  return names.at(static_cast<size_t>(shape));
}

Shape shape_of(std::span<const BadWord> words, std::optional<uint32_t> geometry, bool own_address) {
  if (words.empty()) return Shape::scattered;
  Spread s(words, geometry.value_or(KZ_GEOM_DEFAULT));
  if (s.words.size() == 1) return Shape::cell;
  if (own_address && decoder_shows(words)) return Shape::address_line;
  bool one_lane = std::has_single_bit(s.any_bit) && s.words.size() >= enough;
  if (!geometry) return one_lane ? Shape::lane : Shape::scattered;
  if (s.one_bank() && s.rows.size() == 1) return Shape::row;
  if (s.one_bank() && s.columns.size() == 1) return Shape::column;
  if (one_lane && s.one_channel()) return Shape::lane;
  if (s.words.size() < enough) return Shape::scattered;
  if (s.one_bank()) return Shape::bank;
  if (s.one_channel()) return Shape::channel;
  return one_lane ? Shape::lane : Shape::scattered;
}

std::string place_text(uint64_t addr, std::optional<uint32_t> geometry) {
  if (!geometry) return fmt::format("0x{:x}", addr);
  auto p = kz_hbm_split(addr, *geometry);
  return fmt::format("0x{:x} channel {} pc {} bank {} row {} column {}", addr, p.channel, p.pseudo, p.bank,
                     p.row, p.column);
}

}  // namespace kz::memcheck
