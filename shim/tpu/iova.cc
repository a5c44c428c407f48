// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/iova.h"

#include <fmt/format.h>

#include "shim/base/error.h"

namespace kz {
namespace {

constexpr uint64_t page = 4096;

// a + b, or the largest value where that would wrap.
uint64_t add(uint64_t a, uint64_t b) { return b > UINT64_MAX - a ? UINT64_MAX : a + b; }

// The size in whole pages; 0 where there is none.
uint64_t whole_pages(uint64_t size) { return size > UINT64_MAX - (page - 1) ? 0 : align_up(size, page); }

}  // namespace

IovaAllocator::IovaAllocator(uint64_t low, uint64_t high, uint64_t gap)
    : low_(align_up(low, page)), last_(high - 1), gap_(gap) {}

Iova IovaAllocator::take(uint64_t size) {
  uint64_t need = whole_pages(size), at = low_;
  if (need == 0)
    throw Error({Errc::usage, "take bus address for", fmt::format("{} bytes", size), "no such size", "", 0});
  for (auto [first, last] : taken_) {
    if (add(last, gap_) < at) continue;
    if (first > at && first - at >= add(need, gap_)) break;
    if (last == UINT64_MAX || UINT64_MAX - (last + 1) < gap_) {
      at = 0;  // nothing behind it
      break;
    }
    at = std::max(at, last + 1 + gap_);
  }
  if (at < low_ || at > last_ || last_ - at < need - 1)
    throw Error({Errc::no_memory, "take bus address for", fmt::format("{} bytes", size),
                 "no free range is that long", "free DMA buffers first", 0});
  taken_.emplace(at, at + (need - 1));
  return {at};
}

Iova IovaAllocator::take_at(Iova at, uint64_t size) {
  uint64_t need = whole_pages(size);
  std::string target = fmt::format("{:#x}+{:#x}", at.value, size);
  if (at.value % page != 0 || need == 0 || need - 1 > UINT64_MAX - at.value)
    throw Error({Errc::usage, "take bus address", target, "not page-aligned, empty, or wraps", "", 0});
  uint64_t last = at.value + (need - 1);
  if (last > last_)
    throw Error({Errc::usage, "take bus address", target,
                 fmt::format("the device reaches up to {:#x}", last_), "", 0});
  auto after = taken_.upper_bound(last);
  if (after != taken_.begin() && std::prev(after)->second >= at.value)
    throw Error({Errc::busy, "take bus address", target,
                 fmt::format("{:#x} is taken", std::prev(after)->first), "", 0});
  taken_.emplace(at.value, last);
  return at;
}

void IovaAllocator::give_back(Iova at) {
  if (taken_.erase(at.value) == 0)
    throw Error(
        {Errc::usage, "give back bus address", fmt::format("{:#x}", at.value), "it was not taken", "", 0});
}

}  // namespace kz
