// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/iova.h"

#include <fmt/format.h>

#include "shim/base/error.h"

namespace kz {

static constexpr uint64_t page = 4096;

IovaAllocator::IovaAllocator(uint64_t low, uint64_t high)
    : low_(align_up(low, page)), last_(high - 1) {}

Iova IovaAllocator::take(uint64_t size) {
  uint64_t need = align_up(size, page), at = low_;
  if (need == 0 || need < size)
    throw Error({Errc::usage, "take IOVA", fmt::format("{} bytes", size),
                 "no such size", "", 0});
  for (auto [first, last] : taken_) {
    if (last < at)
      continue;
    if (first > at && first - at >= need)
      break;
    at = last + 1;
    if (at == 0)
      break; // ran over the end of the address space
  }
  if (at < low_ || at > last_ || last_ - at < need - 1)
    throw Error({Errc::no_memory, "take IOVA", fmt::format("{} bytes", size),
                 "no free range is that long", "", 0});
  taken_.emplace(at, at + (need - 1));
  return {at};
}

Iova IovaAllocator::take_at(Iova at, uint64_t size) {
  uint64_t need = align_up(size, page);
  if (at.value % page != 0 || need == 0 || need < size ||
      at.value + (need - 1) < at.value)
    throw Error({Errc::usage, "take IOVA",
                 fmt::format("{:#x}+{:#x}", at.value, size),
                 "not page-aligned, or wraps", "", 0});
  uint64_t last = at.value + (need - 1);
  auto after = taken_.upper_bound(last);
  if (after != taken_.begin() && std::prev(after)->second >= at.value)
    throw Error(
        {Errc::busy, "take IOVA", fmt::format("{:#x}+{:#x}", at.value, size),
         fmt::format("{:#x} is taken", std::prev(after)->first), "", 0});
  taken_.emplace(at.value, last);
  return at;
}

void IovaAllocator::give_back(Iova at) {
  if (taken_.erase(at.value) == 0)
    throw Error({Errc::usage, "give back IOVA", fmt::format("{:#x}", at.value),
                 "it was not taken", "", 0});
}

} // namespace kz
