// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/cells.h"

#include <cmath>
#include <cstring>

#include "tools/softtpu/hbm.h"

namespace kz::softtpu {

uint64_t CellModel::load(uint64_t addr) const {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(memory_.data() + addr), __ATOMIC_RELAXED);
}

void CellModel::store(uint64_t addr, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(memory_.data() + addr), value, __ATOMIC_RELAXED);
}

std::unique_lock<std::mutex> CellModel::lock() {
  // Decoder and data-path defects have no state; only they run without the lock.
  if (cells_.empty() && !transient_) return {};
  return std::unique_lock(mutex_);
}

uint64_t CellModel::translate(uint64_t addr) const {
  addr &= ~ignored_bits_;
  for (const BankAlias& alias : bank_aliases_) {
    kz_hbm_place p = kz_hbm_split(addr, geometry_);
    if (p.bank != alias.other) continue;
    p.bank = alias.bank;
    uint64_t moved = kz_hbm_join(p, geometry_);
    if (moved < memory_.size()) addr = moved;
  }
  return addr;
}

bool CellModel::same_bank(const kz_hbm_place& a, const kz_hbm_place& b) const {
  return a.channel == b.channel && a.pseudo == b.pseudo && a.bank == b.bank;
}

// Brings the stored bit to what the defect makes of it without any access.
void CellModel::settle(Cell& c) {
  switch (c.row) {
    case Row::M01:
      return store(c.word, load(c.word) & ~c.mask);
    case Row::M02:
      return store(c.word, load(c.word) | c.mask);
    case Row::M07:
      if (((load(c.agg[0]) & c.agg_mask) != 0) == c.rise[0])
        store(c.word, c.value ? load(c.word) | c.mask : load(c.word) & ~c.mask);
      return;
    case Row::M12:
      if (Clock::now() - c.since >= c.span)
        store(c.word, c.value ? load(c.word) | c.mask : load(c.word) & ~c.mask);
      return;
    default:
      return;
  }
}

// What a read of the victim's word returns, and what it does to the cell.
uint64_t CellModel::sensed(Cell& c, uint64_t value, bool& poison) {
  bool sensitive = ((load(c.word) & c.mask) != 0) == c.value;
  switch (c.row) {
    case Row::M08:
      return c.value ? ~uint64_t{0} : 0;
    case Row::M09:
      return c.value ? value | load(c.agg[0]) : value & load(c.agg[0]);
    case Row::M11:
      return (value & ~c.mask) | c.sense;
    case Row::M13:
    case Row::M14:
      if (!sensitive) return value;
      store(c.word, load(c.word) ^ c.mask);
      return c.row == Row::M13 ? value ^ c.mask : value;
    case Row::M15:
      return sensitive ? value ^ c.mask : value;
    case Row::M20:
      return celsius_.load(std::memory_order_relaxed) > c.fault->param("celsius") ? value ^ c.mask : value;
    case Row::M24:
      if (!ecc_.enabled()) return value ^ 0x8001;  // nobody notices
      ecc_.count_uncorrectable(c.word);
      poison = true;
      return value;
    case Row::M25:
      if (ecc_.enabled() && c.fault->uparam("counted") != 0) ecc_.count_correctable(ecc_.channel_of(c.word));
      return value ^ c.mask;
    default:
      return value;
  }
}

// What the victim's word takes of a write. `value` has the old bits where `mask` is 0.
uint64_t CellModel::accepted(Cell& c, uint64_t old, uint64_t value, uint64_t mask) {
  switch (c.row) {
    case Row::M03:
      return value & ~(~old & value & c.mask);
    case Row::M04:
      return value | (old & ~value & c.mask);
    case Row::M08:
      return old;
    case Row::M09:
      store(c.agg[0], (load(c.agg[0]) & ~mask) | (value & mask));
      return value;
    case Row::M11:
      return (value & ~c.mask) | (old & c.mask);
    case Row::M12:
      if ((mask & c.mask) != 0) c.since = Clock::now();
      return value;
    case Row::M16: {
      bool same = ((old ^ value) & c.mask) == 0 && (mask & c.mask) != 0;
      return same && ((value & c.mask) != 0) == c.value ? value ^ c.mask : value;
    }
    default:
      return value;
  }
}

// The write of `addr` from `old` to `now` as the victim feels it.
void CellModel::couple(Cell& c, uint64_t addr, uint64_t old, uint64_t now) {
  auto moved = [&](int i) {
    return c.agg[i] == addr && ((old ^ now) & c.agg_mask) != 0 && ((now & c.agg_mask) != 0) == c.rise[i];
  };
  auto force = [&](bool v) { store(c.word, v ? load(c.word) | c.mask : load(c.word) & ~c.mask); };
  switch (c.row) {
    case Row::M05:
      if (moved(0)) store(c.word, load(c.word) ^ c.mask);
      return;
    case Row::M06:
      if (moved(0)) force(c.value);
      return;
    case Row::M07:
      if (addr == c.agg[0]) settle(c);
      return;
    case Row::M17:  // the second fault hides what the first one did
      if (moved(0)) force(c.value);
      if (moved(1)) force(!c.value);
      return;
    default:
      return;
  }
}

void CellModel::note_access(Cell& c, uint64_t addr) {
  if (c.row != Row::M18) return;
  kz_hbm_place p = kz_hbm_split(addr, geometry_);
  if (!same_bank(p, c.place)) return;
  if (p.row == c.place.row) {
    c.count = 0;
  } else if (p.row + 1 == c.place.row || p.row == c.place.row + 1) {
    if (c.count == 0 || Clock::now() - c.since > c.span) {
      c.count = 0;
      c.since = Clock::now();
    }
    if (++c.count < c.limit) return;
    store(c.word, load(c.word) ^ c.mask);
    c.count = 0;
  }
}

uint64_t CellModel::read_array(uint64_t addr, bool& poison) {
  for (Cell& c : cells_)
    if (c.word == addr) settle(c);
  for (Cell& c : cells_) note_access(c, addr);
  uint64_t value = load(addr);
  for (Cell& c : cells_)
    if (c.word == addr) value = sensed(c, value, poison);
  for (Cell& c : cells_)
    if (c.row == Row::M11 && addr / Hbm::page == c.word / Hbm::page &&
        same_bank(kz_hbm_split(addr, geometry_), c.place))
      c.sense = value & c.mask;
  return value;
}

void CellModel::write_array(uint64_t addr, uint64_t value, uint64_t mask) {
  for (Cell& c : cells_)
    if (c.word == addr) settle(c);
  for (Cell& c : cells_) note_access(c, addr);
  uint64_t old = load(addr), now = (old & ~mask) | (value & mask);
  for (Cell& c : cells_)
    if (c.word == addr) now = accepted(c, old, now, mask);
  store(addr, now);
  for (Cell& c : cells_) couple(c, addr, old, now);
  for (Cell& c : cells_)
    if (c.word == addr && c.row != Row::M12) settle(c);
}

uint64_t CellModel::on_data_path(uint64_t addr, uint64_t value) const {
  if (dead_.empty() && lanes_.empty()) return value;
  kz_hbm_place p = kz_hbm_split(addr, geometry_);
  for (const StuckLane& l : lanes_)
    if (p.channel == l.channel) value = l.value ? value | l.mask : value & ~l.mask;
  for (const DeadPc& d : dead_)
    if (p.channel == d.channel && p.pseudo == d.pseudo) value = d.value ? ~uint64_t{0} : 0;
  return value;
}

void CellModel::draw_countdown() { countdown_ = std::geometric_distribution<uint64_t>(flip_rate_)(rng_); }

uint64_t CellModel::maybe_flip(uint64_t value) {
  if (countdown_-- != 0) return value;
  draw_countdown();
  return value ^ (uint64_t{1} << (rng_() % 64));
}

bool CellModel::skip_reads(uint64_t words) {
  if (!transient_) return true;
  std::lock_guard lock(mutex_);
  if (countdown_ < words) return false;
  countdown_ -= words;
  return true;
}

uint64_t CellModel::read_word(uint64_t addr, bool& poison) {
  uint64_t at = whole_ ? translate(addr) : addr;
  uint64_t value = local_[at / Hbm::page] ? read_array(at, poison) : load(at);
  if (whole_) value = on_data_path(at, value);
  return transient_ ? maybe_flip(value) : value;
}

void CellModel::write_word(uint64_t addr, uint64_t value, uint64_t mask) {
  uint64_t at = whole_ ? translate(addr) : addr;
  if (whole_) value = on_data_path(at, value);
  if (local_[at / Hbm::page]) return write_array(at, value, mask);
  store(at, mask == ~uint64_t{0} ? value : (load(at) & ~mask) | (value & mask));
}

bool CellModel::read(uint64_t addr, std::span<std::byte> out) {
  auto guard = lock();
  bool poison = false;
  for (size_t done = 0; done < out.size();) {
    uint64_t a = addr + done, skip = a % 8, n = std::min<uint64_t>(8 - skip, out.size() - done);
    uint64_t value = read_word(a - skip, poison);
    std::memcpy(out.data() + done, reinterpret_cast<std::byte*>(&value) + skip, n);
    done += n;
  }
  return !poison;
}

void CellModel::write(uint64_t addr, std::span<const std::byte> in) {
  auto guard = lock();
  for (size_t done = 0; done < in.size();) {
    uint64_t a = addr + done, skip = a % 8, n = std::min<uint64_t>(8 - skip, in.size() - done);
    uint64_t value = 0, mask = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&value) + skip, in.data() + done, n);
    std::memset(reinterpret_cast<std::byte*>(&mask) + skip, 0xff, n);
    write_word(a - skip, value, mask);
    done += n;
  }
}

void CellModel::restart() {
  std::lock_guard guard(mutex_);
  for (Cell& c : cells_) {
    c.count = 0;
    c.sense = 0;
    c.since = Clock::now();
  }
}

}  // namespace kz::softtpu
