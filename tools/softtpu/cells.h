// SPDX-License-Identifier: GPL-2.0-or-later
// The memory array with its defects: how the planted faults M01..M22, M24, M25 and M28 act on a read or write
// of a word.
//
// Definitions follow the functional fault models of A. J. van de Goor, "Testing Semiconductor Memories", and
// S. Hamdioui et al., "March SS". Addresses are physical byte addresses. A model is immutable but for the
// state of its defects, which `mutex` guards; it is replaced as a whole when what is planted changes.
//
// Choices that the literature leaves open:
// - Coupling acts after the write that causes it, also when the victim is in the same word.
// - A stuck-open cell returns what was last read in its bank within its page (its stretch of the sense line).
// - Rows close after each access, so each word read or written in a neighbour row is one activation of it. An
// access to the
//   victim's own row refreshes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "shim/base/units.h"
#include "tools/softtpu/fault_board.h"
#include "tools/softtpu/hbm_ecc.h"

namespace kz::softtpu {

class CellModel {
 public:
  // `memory` is the whole array. `celsius` is read at each access. The model refers to all arguments.
  CellModel(std::span<std::byte> memory, uint32_t geometry, const FaultBoard& faults, Ecc& ecc,
            const std::atomic<double>& celsius);

  // Nothing planted that acts on cells.
  bool empty() const { return !whole_ && !transient_ && cells_.empty(); }
  // A defect that is not confined to some pages: nothing may be mapped directly.
  bool everywhere() const { return whole_ || transient_; }
  // Every access to this page must go through read/write.
  bool affects(uint64_t page) const { return whole_ || local_[page] != 0; }
  // For a page that is not affected: takes `words` reads off the run up to the next intermittent flip (M19).
  // False: the flip falls into them, so they must go through read/write_word.
  bool skip_reads(uint64_t words);

  // Bytes of any alignment. read returns false when it met an uncorrectable error.
  bool read(uint64_t addr, std::span<std::byte> out);
  void write(uint64_t addr, std::span<const std::byte> in);

  // One word each, for march elements; hold `lock()` around a run of them.
  [[nodiscard]] std::unique_lock<std::mutex> lock();
  uint64_t read_word(uint64_t addr, bool& poison);
  void write_word(uint64_t addr, uint64_t value, uint64_t mask = ~uint64_t{0});

  // Where the decoder sends an address (M10, M28).
  uint64_t translate(uint64_t addr) const;
  // The array lost power or was cleared as a whole: time-dependent state starts anew.
  void restart();

 private:
  struct Cell {  // one planted fault with a place
    const Fault* fault;
    Row row;
    uint64_t word = 0, mask = 0;  // victim
    uint64_t agg[2] = {}, agg_mask = 0;
    bool rise[2] = {};   // the aggressor's transition, or its state for CFst
    bool value = false;  // forced, sensitive or decayed value
    uint64_t count = 0;  // activations
    uint64_t limit = 0;
    uint64_t sense = 0;
    Clock::duration span{};   // retention time, refresh interval
    Clock::time_point since;  // last write, start of the refresh interval
    kz_hbm_place place{};
  };

  void add(const Fault& f);  // cells_build.cc
  void add_decoder(const Fault& f);
  void add_data_path(const Fault& f);
  void add_cell(const Fault& f);
  void place_aggressor(Cell& c, int i, const char* distance, const char* below);
  void mark(uint64_t addr);
  void mark_row(const kz_hbm_place& place);
  uint64_t word_at(double fraction) const;

  uint64_t load(uint64_t addr) const;
  void store(uint64_t addr, uint64_t value);
  uint64_t read_array(uint64_t addr, bool& poison);
  void write_array(uint64_t addr, uint64_t value, uint64_t mask);
  void settle(Cell& c);
  uint64_t sensed(Cell& c, uint64_t value, bool& poison);
  uint64_t accepted(Cell& c, uint64_t old, uint64_t value, uint64_t mask);
  void couple(Cell& c, uint64_t addr, uint64_t old, uint64_t now);
  void note_access(Cell& c, uint64_t addr);
  bool same_bank(const kz_hbm_place& a, const kz_hbm_place& b) const;
  uint64_t on_data_path(uint64_t addr, uint64_t value) const;
  uint64_t maybe_flip(uint64_t value);
  void draw_countdown();

  const std::span<std::byte> memory_;
  const uint32_t geometry_;
  const FaultBoard& faults_;
  Ecc& ecc_;
  const std::atomic<double>& celsius_;

  bool whole_ = false;  // decoder or data path
  bool transient_ = false;
  uint64_t ignored_bits_ = 0;
  struct BankAlias {
    uint32_t bank, other;
  };
  std::vector<BankAlias> bank_aliases_;
  struct DeadPc {
    uint32_t channel, pseudo;
    bool value;
  };
  std::vector<DeadPc> dead_;
  struct StuckLane {
    uint32_t channel;
    uint64_t mask;
    bool value;
  };
  std::vector<StuckLane> lanes_;
  std::vector<uint8_t> local_;

  std::mutex mutex_;  // all below
  std::vector<Cell> cells_;
  double flip_rate_ = 0;
  uint64_t countdown_ = 0;
  std::mt19937_64 rng_;
};

}  // namespace kz::softtpu
