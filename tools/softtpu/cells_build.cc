// SPDX-License-Identifier: GPL-2.0-or-later
// From planted faults to a model of the array.
#include <algorithm>
#include <bit>

#include "tools/softtpu/cells.h"
#include "tools/softtpu/hbm.h"

namespace kz::softtpu {
namespace {

constexpr Row cell_rows[] = {Row::M01, Row::M02, Row::M03, Row::M04, Row::M05, Row::M06, Row::M07,
                             Row::M08, Row::M09, Row::M10, Row::M11, Row::M12, Row::M13, Row::M14,
                             Row::M15, Row::M16, Row::M17, Row::M18, Row::M19, Row::M20, Row::M21,
                             Row::M22, Row::M24, Row::M25, Row::M28};

}  // namespace

CellModel::CellModel(std::span<std::byte> memory, uint32_t geometry, const FaultBoard& faults, Ecc& ecc,
                     const std::atomic<double>& celsius)
    : memory_(memory), geometry_(geometry), faults_(faults), ecc_(ecc), celsius_(celsius) {
  local_.resize(memory.size() / Hbm::page);
  for (Row row : cell_rows)
    for (const Fault* f : faults.planted(row)) add(*f);
}

void CellModel::add(const Fault& f) {
  switch (f.row) {
    case Row::M10:
    case Row::M28:
      return add_decoder(f);
    case Row::M19:
    case Row::M21:
    case Row::M22:
      return add_data_path(f);
    default:
      return add_cell(f);
  }
}

void CellModel::add_decoder(const Fault& f) {
  if (f.row == Row::M10) {
    // A line that this size of HBM does not have is folded onto one that it has.
    uint64_t lines = std::bit_width(memory_.size() - 1) - KZ_HBM_LINE_SHIFT;
    uint64_t bit = KZ_HBM_LINE_SHIFT + (f.uparam("bit") - KZ_HBM_LINE_SHIFT) % lines;
    ignored_bits_ |= uint64_t{1} << bit;
    whole_ = true;
    return;
  }
  uint32_t banks = 1u << KZ_GEOM_BANK(geometry_);
  if (banks == 1) return;
  uint32_t bank = f.uparam("bank") % banks, other = f.uparam("other") % banks;
  if (other == bank) other = (bank + 1) % banks;
  bank_aliases_.push_back({bank, other});
  whole_ = true;
}

void CellModel::add_data_path(const Fault& f) {
  uint32_t channels = 1u << KZ_GEOM_CH(geometry_), pseudos = 1u << KZ_GEOM_PC(geometry_);
  if (f.row == Row::M19) {
    transient_ = true;
    flip_rate_ = f.param("rate");
    rng_.seed(f.seed);
    draw_countdown();
    return;
  }
  whole_ = true;
  if (f.row == Row::M21) {
    uint32_t pc = f.uparam("pc") % (channels * pseudos);
    dead_.push_back({pc % channels, pc / channels, f.uparam("value") != 0});
  } else {
    lanes_.push_back({static_cast<uint32_t>(f.uparam("channel") % channels), uint64_t{1} << f.uparam("lane"),
                      f.uparam("value") != 0});
  }
}

uint64_t CellModel::word_at(double fraction) const {
  uint64_t words = memory_.size() / 8;
  return std::min(static_cast<uint64_t>(fraction * static_cast<double>(words)), words - 1) * 8;
}

void CellModel::mark(uint64_t addr) { local_[addr / Hbm::page] = 1; }

// All pages with a word of the row and its two neighbours.
void CellModel::mark_row(const kz_hbm_place& place) {
  uint32_t below = KZ_HBM_LINE_SHIFT + KZ_GEOM_CH(geometry_) + KZ_GEOM_PC(geometry_) +
                   KZ_GEOM_BANK(geometry_) + KZ_GEOM_COL(geometry_);
  uint64_t first = place.row == 0 ? 0 : place.row - 1;
  uint64_t from = first << below, to = std::min((uint64_t{place.row} + 2) << below, memory_.size());
  for (uint64_t a = from; a < to; a += Hbm::page) mark(a);
}

void CellModel::place_aggressor(Cell& c, int i, const char* distance, const char* below) {
  uint64_t words = memory_.size() / 8, d = c.fault->uparam(distance), v = c.word / 8;
  bool down = c.fault->uparam(below) != 0;
  if (down ? v < d : v + d >= words) down = !down;  // at an edge it lies on the other side
  c.agg[i] = (down ? v - d : v + d) * 8;
  mark(c.agg[i]);
}

void CellModel::add_cell(const Fault& f) {
  auto has = [&f](const char* name) { return f.params.contains(name); };
  Cell c{.fault = &f, .row = f.row};
  c.word = word_at(f.param("addr_frac"));
  if (has("bit")) c.mask = uint64_t{1} << f.uparam("bit");
  if (has("value")) c.value = f.uparam("value") != 0;
  if (has("rise")) c.rise[0] = f.uparam("rise") != 0;
  if (has("rise2")) c.rise[1] = f.uparam("rise2") != 0;
  if (has("kind")) {
    c.rise[0] = (f.uparam("kind") & 2) != 0;
    c.value = (f.uparam("kind") & 1) != 0;
  }
  c.place = kz_hbm_split(c.word, geometry_);
  c.since = Clock::now();
  mark(c.word);
  if (has("agg_words")) {
    place_aggressor(c, 0, "agg_words", "agg_below");
    uint64_t bit = f.uparam("agg_bit");
    if (c.agg[0] == c.word && (uint64_t{1} << bit) == c.mask) bit = (bit + 1) % 64;
    c.agg_mask = uint64_t{1} << bit;
  }
  if (has("agg2_words")) place_aggressor(c, 1, "agg2_words", "agg2_below");
  if (f.row == Row::M09) {
    uint64_t words = memory_.size() / 8;
    c.agg[0] = (c.word / 8 + f.uparam("other_words")) % words * 8;
    c.value = f.uparam("wired_or") != 0;
    mark(c.agg[0]);
  }
  if (f.row == Row::M12) c.span = std::chrono::milliseconds(f.uparam("ms"));
  if (f.row == Row::M18) {
    c.span = std::chrono::milliseconds(f.uparam("refresh_ms"));
    c.limit = f.uparam("n");
    mark_row(c.place);
  }
  if (f.row ==
      Row::M25)  // three flipped bits look like one error of a fourth bit, and the code "corrects" that
    c.mask |= std::rotl(c.mask, 17) | std::rotl(c.mask, 34) | (ecc_.enabled() ? std::rotl(c.mask, 51) : 0);
  cells_.push_back(c);
}

}  // namespace kz::softtpu
