// SPDX-License-Identifier: GPL-2.0-or-later
// Bus addresses for DMA buffers: which are taken.
#pragma once

#include <cstdint>
#include <map>

#include "shim/base/units.h"

namespace kz {

// Page-granular (4 KiB), first fit. Not thread-safe.
class IovaAllocator {
public:
  // Addresses [low, high); high may be 0 for the end of the 64-bit space.
  IovaAllocator(uint64_t low, uint64_t high);
  // Throws Error(no_memory) when no range is long enough.
  Iova take(uint64_t size);
  // Exactly there; may lie outside [low, high). Throws Error(busy) when any of
  // it is taken, Error(usage) when it is not page-aligned or wraps.
  Iova take_at(Iova at, uint64_t size);
  // Throws Error(usage) for an address that was not given out.
  void give_back(Iova at);
  size_t count() const { return taken_.size(); }

private:
  uint64_t low_, last_;                // last_: last usable byte
  std::map<uint64_t, uint64_t> taken_; // first byte -> last byte
};

} // namespace kz
