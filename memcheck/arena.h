// SPDX-License-Identifier: GPL-2.0-or-later
// All HBM that can be had, in a context of our own, and where each of its words lies in the chip.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memcheck/shape.h"
#include "shim/device.h"
#include "tests/harness/queue_guard.h"

namespace kz::memcheck {

struct Region {
  HbmAddr addr;
  uint64_t size = 0;
  HbmAddr end() const { return addr + size; }
};

class Arena {
 public:
  // Takes all free HBM, or `want` bytes of it. Throws Error(no_memory) when there is none at all.
  explicit Arena(Device& device, std::optional<Bytes> want = std::nullopt);

  Device& device() { return device_; }
  Context& context() { return *context_; }
  test::QueueGuard& queue() { return *queue_; }
  uint64_t size() const { return size_; }
  // In rising order of address; one where the allocator is not fragmented.
  const std::vector<Region>& regions() const { return regions_; }

  // Physical address behind an address of the arena; the address itself where the device does not tell.
  uint64_t physical(uint64_t addr);
  std::optional<uint32_t> geometry() const { return device_.capabilities().limits.hbm_geometry; }
  std::string place(uint64_t addr) { return place_text(physical(addr), geometry()); }

  // `bytes` of the arena in pieces of at most `piece`, spread evenly and with both ends; all of it where it
  // fits.
  std::vector<Region> spread(uint64_t bytes, uint64_t piece) const;

 private:
  void take(uint64_t want);

  Device& device_;
  std::unique_ptr<Context> context_;
  std::vector<std::unique_ptr<HbmBlock>> blocks_;
  std::vector<Region> regions_;
  std::map<uint64_t, uint64_t> pages_;  // page of the context -> physical page
  uint64_t size_ = 0;
  std::unique_ptr<test::QueueGuard> queue_;
};

}  // namespace kz::memcheck
