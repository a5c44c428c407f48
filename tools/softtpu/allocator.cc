// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/allocator.h"

#include <algorithm>
#include <set>

namespace kz::softtpu {

Pinned::~Pinned() {
  if (owner_ != nullptr) owner_->unpin(*this);
}

Allocator::Allocator(Hbm& hbm, FaultBoard& faults) : hbm_(hbm), faults_(faults) {
  owner_.assign(hbm.pages(), nobody);
  pins_.resize(hbm.pages());
  retired_.resize(hbm.pages());
  believed_clean_.resize(hbm.pages());
  free_ = hbm.pages();
  contexts_[0];
}

Allocator::Answer Allocator::create_context() {
  std::lock_guard lock(mutex_);
  auto slot = std::find(slots_.begin() + 1, slots_.end(), false);
  if (slot == slots_.end()) return {KZ_ST_NO_CONTEXT};
  *slot = true;
  uint32_t id = next_id_++;
  Context& c = contexts_[id];
  c.slot = static_cast<uint32_t>(slot - slots_.begin());
  c.next = c.slot * slot_bytes + 16 * Hbm::page;
  ++changes_;
  return {KZ_ST_OK, id};
}

Allocator::Answer Allocator::destroy_context(uint32_t context) {
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context);
  if (context == 0 || it == contexts_.end()) return {KZ_ST_NO_CONTEXT};
  std::vector<Page> pages;
  for (auto& [addr, block] : it->second.blocks) pages.insert(pages.end(), block.begin(), block.end());
  if (const Fault* f = faults_.due(Row::F04)) leak(f->uparam("pages"), pages);
  give_back(pages, context);
  slots_[it->second.slot] = false;
  contexts_.erase(it);
  ++changes_;
  return {};
}

// Fault F04: pages of the context, or of its page table where it owns too few, never become free again.
void Allocator::leak(uint64_t n, std::vector<Page>& own) {
  for (; n > 0 && !own.empty(); --n) own.pop_back();
  for (Page p = 0; n > 0 && p < owner_.size(); ++p) {
    if (!available(p, false)) continue;
    owner_[p] = 0;
    --free_;
    --n;
  }
}

bool Allocator::available(Page p, bool retired_too) const {
  return owner_[p] == nobody && (retired_too || !retired_[p]);
}

std::optional<Allocator::Page> Allocator::find_run(uint64_t n, bool retired_too) const {
  uint64_t run = 0;
  for (Page p = 0; p < owner_.size(); ++p) {
    run = available(p, retired_too) ? run + 1 : 0;
    if (run == n) return static_cast<Page>(p + 1 - n);
  }
  return std::nullopt;
}

// Empty when there are not enough.
std::vector<Allocator::Page> Allocator::find_pages(uint64_t n, bool run, bool retired_too) const {
  std::vector<Page> out;
  if (n > owner_.size() || (!retired_too && n > free_)) return out;
  out.reserve(n);
  if (auto first = find_run(n, retired_too)) {
    for (uint64_t i = 0; i < n; ++i) out.push_back(static_cast<Page>(*first + i));
    return out;
  }
  if (run) return out;
  for (Page p = 0; p < owner_.size() && out.size() < n; ++p)
    if (available(p, retired_too)) out.push_back(p);
  if (out.size() < n) out.clear();
  return out;
}

// A free range of the context's addresses with an unmapped page behind it.
std::optional<uint64_t> Allocator::place(Context& c, uint64_t pages) {
  uint64_t need = (pages + 1) * Hbm::page, end = (uint64_t{c.slot} + 1) * slot_bytes;
  if (c.next + need > end) {  // went once around: look for a gap from the start
    c.next = c.slot * slot_bytes + 16 * Hbm::page;
    for (const auto& [addr, block] : c.blocks) {
      if (addr >= c.next + need) break;
      c.next = addr + (block.size() + 1) * Hbm::page;
    }
    if (c.next + need > end) return std::nullopt;
  }
  auto after = c.blocks.lower_bound(c.next);
  while (after != c.blocks.end() && after->first < c.next + need) {
    c.next = after->first + (after->second.size() + 1) * Hbm::page;
    ++after;
  }
  if (c.next + need > end) return std::nullopt;
  return std::exchange(c.next, c.next + need);
}

Allocator::Answer Allocator::alloc(uint32_t context, uint64_t len) {
  retire_bad_pages();
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context);
  if (it == contexts_.end()) return {KZ_ST_NO_CONTEXT};
  if (len == 0) return {KZ_ST_BAD_LENGTH};
  uint64_t n = len > hbm_.size() ? hbm_.pages() + 1 : (len + Hbm::page - 1) / Hbm::page;
  std::vector<Page> pages = find_pages(n, context == 0, faults_.due(Row::M27) != nullptr);
  if (pages.empty()) return {KZ_ST_NO_MEMORY, 0, faults_.due(Row::F18) != nullptr};
  auto addr = context == 0 ? pages.front() * Hbm::page : place(it->second, n);
  if (!addr) return {KZ_ST_NO_MEMORY};
  take(pages, context);
  clear(pages, true);
  if (context != 0) {
    if (Page p = shared_page(context); p != nobody && faults_.due(Row::F19) != nullptr) {
      give_back({pages.front()}, context);
      pages.front() = p;
    }
  }
  it->second.blocks[*addr] = std::move(pages);
  ++changes_;
  return {KZ_ST_OK, *addr};
}

// Fault F19: a page that another context owns.
Allocator::Page Allocator::shared_page(uint32_t context) const {
  for (auto it = contexts_.rbegin(); it != contexts_.rend(); ++it)
    if (it->first != context && it->first != 0 && !it->second.blocks.empty())
      return it->second.blocks.begin()->second.front();
  return nobody;
}

void Allocator::take(const std::vector<Page>& pages, uint32_t context) {
  for (Page p : pages) {
    owner_[p] = context;
    if (!retired_[p]) --free_;
  }
}

void Allocator::give_back(const std::vector<Page>& pages, uint32_t context) {
  std::set<uint64_t> bad = hbm_.ecc().bad_pages();
  clear(pages, false);
  for (Page p : pages) {
    if (owner_[p] != context) continue;  // shared by fault F19: its owner still has it
    owner_[p] = nobody;
    if (!retired_[p]) ++free_;
    if (bad.contains(p)) retire(p);
  }
}

void Allocator::retire(Page p) {
  hbm_.ecc().forget_bad_page(p);
  if (retired_[p]) return;
  retired_[p] = true;
  ++retired_count_;
  --free_;
  ++changes_;
}

void Allocator::retire_bad_pages() {
  std::set<uint64_t> bad = hbm_.ecc().bad_pages();
  if (bad.empty()) return;
  std::lock_guard lock(mutex_);
  for (uint64_t p : bad)
    if (owner_[p] == nobody) retire(static_cast<Page>(p));
}

// In runs, so that the common case is one system call. Fault Q14 forgets some pages.
void Allocator::clear(const std::vector<Page>& pages, bool new_owner) {
  const Fault* forgetful = faults_.active(Row::Q14);
  uint64_t first = 0, count = 0;
  auto flush = [&] {
    if (count != 0) hbm_.clear(first * Hbm::page, count * Hbm::page);
    count = 0;
  };
  for (Page p : pages) {
    bool skip = new_owner && believed_clean_[p];
    if (new_owner) believed_clean_[p] = false;
    if (forgetful != nullptr && p % forgetful->uparam("every_page") == 0) skip = true;
    if (skip || (count != 0 && p != first + count)) flush();
    if (skip) continue;
    if (count == 0) first = p;
    ++count;
  }
  flush();
}

Allocator::Answer Allocator::free(uint32_t context, uint64_t addr) {
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context);
  if (it == contexts_.end()) return {KZ_ST_NO_CONTEXT};
  auto block = it->second.blocks.find(addr);
  if (block == it->second.blocks.end()) return {KZ_ST_HBM_FAULT};
  for (Page p : block->second)
    if (pins_[p] != 0) return {KZ_ST_BUSY};
  give_back(block->second, context);
  it->second.blocks.erase(block);
  ++changes_;
  return {};
}

Allocator::Answer Allocator::query(uint32_t context, uint64_t addr) {
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context);
  if (it == contexts_.end()) return {KZ_ST_NO_CONTEXT};
  if (context == 0) return addr < hbm_.size() ? Answer{KZ_ST_OK, addr} : Answer{KZ_ST_HBM_FAULT};
  std::vector<Pinned::Segment> at;
  if (!translate(it->second, addr, 1, at)) return {KZ_ST_HBM_FAULT};
  return {KZ_ST_OK, at.front().physical};
}

bool Allocator::exists(uint32_t context) const {
  std::lock_guard lock(mutex_);
  return contexts_.contains(context);
}

// The bytes lie in one block: blocks never touch.
bool Allocator::translate(const Context& c, uint64_t addr, uint64_t len,
                          std::vector<Pinned::Segment>& out) const {
  auto it = c.blocks.upper_bound(addr);
  if (it == c.blocks.begin()) return false;
  const auto& [start, pages] = *--it;
  uint64_t offset = addr - start, size = pages.size() * Hbm::page;
  if (offset >= size || len > size - offset) return false;
  while (len > 0) {
    uint64_t in_page = offset % Hbm::page, n = std::min(len, Hbm::page - in_page);
    uint64_t physical = pages[offset / Hbm::page] * Hbm::page + in_page;
    if (!out.empty() && out.back().physical + out.back().len == physical)
      out.back().len += n;
    else
      out.push_back({physical, n});
    offset += n;
    len -= n;
  }
  return true;
}

// Fault Q13: the translation cache forgets whose entry it holds. Mode 0: an address that the context has not
// got is found in another's table. Mode 1: its own address finds the other's page at the same offset.
bool Allocator::misread(uint32_t context, uint64_t addr, uint64_t len,
                        std::vector<Pinned::Segment>& out) const {
  const Fault* f = faults_.active(Row::Q13);
  uint64_t offset = addr % slot_bytes;
  for (const auto& [id, other] : contexts_) {
    if (id == 0 || id == context) continue;
    if (translate(other, f->uparam("mode") == 0 ? addr : other.slot * slot_bytes + offset, len, out))
      return true;
  }
  return false;
}

Pinned Allocator::pin(uint32_t context, uint64_t addr, uint64_t len, bool for_write) {
  std::vector<Pinned::Segment> segments;
  std::lock_guard lock(mutex_);
  auto it = contexts_.find(context);
  if (it == contexts_.end() || len == 0) return {};
  if (context == 0) {
    if (addr >= hbm_.size() || len > hbm_.size() - addr) return {};
    segments.push_back({addr, len});
  } else {
    const Fault* f = for_write ? nullptr : faults_.active(Row::Q13);
    bool first = f != nullptr && f->uparam("mode") == 1 && faults_.due(Row::Q13) != nullptr &&
                 misread(context, addr, len, segments);
    if (!first && !translate(it->second, addr, len, segments)) {
      segments.clear();
      if (f == nullptr || f->uparam("mode") != 0 || faults_.due(Row::Q13) == nullptr ||
          !misread(context, addr, len, segments))
        return {};
    }
  }
  count_pins(segments, 1);
  return Pinned(this, std::move(segments), epoch_);
}

void Allocator::count_pins(const std::vector<Pinned::Segment>& segments, int by) {
  for (const auto& s : segments)
    for (uint64_t p = s.physical / Hbm::page; p <= (s.physical + s.len - 1) / Hbm::page; ++p)
      pins_[p] = static_cast<uint16_t>(pins_[p] + by);
}

void Allocator::unpin(const Pinned& p) {
  std::lock_guard lock(mutex_);
  if (p.epoch() == epoch_) count_pins(p.segments(), -1);
}

void Allocator::reset(bool contexts_survive, bool content_survives) {
  std::lock_guard lock(mutex_);
  ++epoch_;
  std::fill(pins_.begin(), pins_.end(), uint16_t{0});
  ++changes_;
  if (contexts_survive) return;
  contexts_.clear();
  contexts_[0];
  slots_.fill(false);
  std::fill(owner_.begin(), owner_.end(), nobody);
  std::fill(believed_clean_.begin(), believed_clean_.end(), content_survives);
  if (!content_survives) hbm_.clear_all();
  free_ = 0;
  for (Page p = 0; p < owner_.size(); ++p) free_ += available(p, false);
  for (uint64_t p : hbm_.ecc().bad_pages())
    if (owner_[p] == nobody) retire(static_cast<Page>(p));
}

Allocator::Stat Allocator::stat() const {
  std::lock_guard lock(mutex_);
  return {free_, retired_count_, static_cast<uint32_t>(contexts_.size() - 1)};
}

}  // namespace kz::softtpu
