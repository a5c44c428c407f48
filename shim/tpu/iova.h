// SPDX-License-Identifier: GPL-2.0-or-later
// Which stretches of a 64-bit space are taken: bus addresses for DMA buffers.
#pragma once

#include <cstdint>
#include <map>

#include "shim/base/units.h"

namespace kz {

// Page-granular (4 KiB), first fit. Not thread-safe.
class IovaAllocator {
 public:
  // Addresses [low, high); high may be 0 for the end of the 64-bit space. `gap`: bytes (whole pages) left
  // free on both sides of what take() gives out, so that a device that runs over an end hits nothing.
  IovaAllocator(uint64_t low, uint64_t high, uint64_t gap = 0);
  // Throws Error(no_memory) when no range is long enough.
  Iova take(uint64_t size);
  // Exactly there; may lie below `low`. Throws Error(busy) when any of it is taken, Error(usage) when it is
  // not page-aligned, wraps, or ends beyond `high`.
  Iova take_at(Iova at, uint64_t size);
  // Throws Error(usage) for an address that was not given out.
  void give_back(Iova at);
  size_t count() const { return taken_.size(); }

 private:
  uint64_t low_, last_, gap_;           // last_: last usable byte
  std::map<uint64_t, uint64_t> taken_;  // first byte -> last byte
};

}  // namespace kz
