// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/hbm_ecc.h"

#include "tools/softtpu/hbm.h"

namespace kz::softtpu {

void Ecc::inject(uint64_t addr, Kind kind) {
  std::lock_guard lock(mutex_);
  Kind& mark = marks_.try_emplace(addr, kind).first->second;
  if (kind == Kind::uncorrectable) mark = kind;
  count_.store(marks_.size(), std::memory_order_relaxed);
}

bool Ecc::marked(uint64_t addr, uint64_t len) const {
  if (!marked()) return false;
  std::lock_guard lock(mutex_);
  auto it = marks_.lower_bound(addr & ~uint64_t{7});
  return it != marks_.end() && it->first < addr + len;
}

bool Ecc::on_read(uint64_t addr, uint64_t len) {
  if (!marked()) return true;
  bool good = true;
  std::lock_guard lock(mutex_);
  for (auto it = marks_.lower_bound(addr & ~uint64_t{7}); it != marks_.end() && it->first < addr + len;) {
    if (it->second == Kind::correctable) {
      count_correctable(channel_of(it->first));
      it = marks_.erase(it);
      continue;
    }
    good = false;
    bad_pages_.insert(it->first / Hbm::page);
    if (faults_.due(Row::M26) == nullptr) ue_[channel_of(it->first)].fetch_add(1, std::memory_order_relaxed);
    events_.fetch_add(1, std::memory_order_relaxed);
    ++it;
  }
  count_.store(marks_.size(), std::memory_order_relaxed);
  return good;
}

void Ecc::on_write(uint64_t addr, uint64_t len) {
  if (!marked()) return;
  std::lock_guard lock(mutex_);
  auto it = marks_.lower_bound(addr);
  while (it != marks_.end() && it->first + 8 <= addr + len) it = marks_.erase(it);
  count_.store(marks_.size(), std::memory_order_relaxed);
}

void Ecc::count_correctable(uint32_t channel, uint32_t n) {
  if (faults_.due(Row::M26) == nullptr) ce_[channel].fetch_add(n, std::memory_order_relaxed);
  events_.fetch_add(1, std::memory_order_relaxed);
}

void Ecc::count_uncorrectable(uint64_t addr) {
  if (faults_.due(Row::M26) == nullptr) ue_[channel_of(addr)].fetch_add(1, std::memory_order_relaxed);
  events_.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  bad_pages_.insert(addr / Hbm::page);
}

std::set<uint64_t> Ecc::bad_pages() const {
  std::lock_guard lock(mutex_);
  return bad_pages_;
}

void Ecc::forget_bad_page(uint64_t page) {
  std::lock_guard lock(mutex_);
  bad_pages_.erase(page);
}

}  // namespace kz::softtpu
