// SPDX-License-Identifier: GPL-2.0-or-later
// Contexts and who owns which page of HBM: the firmware's allocator and the page tables.
//
// Physical pages are given out first fit, in one run where there is one; context 0 sees physical addresses
// and takes only runs. Another context has its own range of addresses (no two contexts share one); between
// two allocations one page stays unmapped, so that a run past the end faults. A freed range is not used again
// soon. Pages read as zero to a new owner.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "shim/uapi/kz_cmd.h"
#include "tools/softtpu/hbm.h"

namespace kz::softtpu {

class Allocator;

// A range of a context's addresses, translated, and held: its pages cannot be freed while this lives.
// Movable.
class Pinned {
 public:
  struct Segment {
    uint64_t physical, len;
  };

  Pinned() = default;
  Pinned(Allocator* owner, std::vector<Segment> segments, uint64_t epoch)
      : owner_(owner), segments_(std::move(segments)), epoch_(epoch) {}
  Pinned(Pinned&& o) noexcept
      : owner_(std::exchange(o.owner_, nullptr)), segments_(std::move(o.segments_)), epoch_(o.epoch_) {}
  Pinned& operator=(Pinned&& o) noexcept {
    std::swap(owner_, o.owner_);
    std::swap(segments_, o.segments_);
    std::swap(epoch_, o.epoch_);
    return *this;
  }
  ~Pinned();

  explicit operator bool() const { return !segments_.empty(); }
  const std::vector<Segment>& segments() const { return segments_; }
  uint64_t epoch() const { return epoch_; }
  // One physical run?
  bool contiguous() const { return segments_.size() == 1; }
  uint64_t physical() const { return segments_.front().physical; }
  // Calls f(physical, len, done) for the pieces of [offset, offset+len) of the range, in order; `done` counts
  // from 0.
  template <class F>
  void pieces(uint64_t offset, uint64_t len, F f) const {
    uint64_t done = 0;
    for (const Segment& s : segments_) {
      if (offset >= s.len) {
        offset -= s.len;
        continue;
      }
      uint64_t n = std::min(s.len - offset, len - done);
      if (n == 0) return;
      f(s.physical + offset, n, done);
      done += n;
      offset = 0;
    }
  }

 private:
  Allocator* owner_ = nullptr;
  std::vector<Segment> segments_;
  uint64_t epoch_ = 0;
};

class Allocator {
 public:
  static constexpr uint32_t max_contexts = 64;  // besides context 0
  static constexpr uint32_t pages_retire_max = 64;

  Allocator(Hbm& hbm, FaultBoard& faults);

  // Each answers with a KZ_ST_* status, and a result where it is KZ_ST_OK.
  struct Answer {
    uint16_t status = KZ_ST_OK;
    uint64_t result = 0;
    bool hang = false;  // fault F18: the firmware never answers
  };
  Answer create_context();
  // Frees what the context owns, in use or not: its queues are stopped.
  Answer destroy_context(uint32_t context);
  Answer alloc(uint32_t context, uint64_t len);
  Answer free(uint32_t context, uint64_t addr);
  Answer query(uint32_t context, uint64_t addr);

  bool exists(uint32_t context) const;
  // Null (false) where a byte of the range is not mapped. len >= 1; the sum may overflow.
  Pinned pin(uint32_t context, uint64_t addr, uint64_t len, bool for_write);
  // All contexts go, every page is free and zero; retired pages stay retired. `contexts_survive`,
  // `content_survives`: F06.
  void reset(bool contexts_survive, bool content_survives);
  // Pages with an uncorrectable error that nobody owns are taken out of service.
  void retire_bad_pages();

  struct Stat {
    uint64_t free_pages, retired_pages;
    uint32_t contexts;
  };
  Stat stat() const;
  uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

 private:
  friend class Pinned;
  using Page = uint32_t;
  struct Context {
    uint32_t slot = 0;
    uint64_t next = 0;                             // where the next allocation starts
    std::map<uint64_t, std::vector<Page>> blocks;  // by start address
  };
  static constexpr uint32_t nobody = UINT32_MAX;
  static constexpr uint64_t slot_bytes = uint64_t{1} << 40;

  bool available(Page p, bool retired_too) const;
  std::optional<Page> find_run(uint64_t n, bool retired_too) const;
  std::vector<Page> find_pages(uint64_t n, bool run, bool retired_too) const;
  std::optional<uint64_t> place(Context& c, uint64_t pages);
  void take(const std::vector<Page>& pages, uint32_t context);
  void give_back(const std::vector<Page>& pages, uint32_t context);
  void clear(const std::vector<Page>& pages, bool new_owner);
  void retire(Page p);
  void leak(uint64_t n, std::vector<Page>& own);
  Page shared_page(uint32_t context) const;
  bool translate(const Context& c, uint64_t addr, uint64_t len, std::vector<Pinned::Segment>& out) const;
  bool misread(uint32_t context, uint64_t addr, uint64_t len, std::vector<Pinned::Segment>& out) const;
  void unpin(const Pinned& p);
  void count_pins(const std::vector<Pinned::Segment>& segments, int by);

  Hbm& hbm_;
  FaultBoard& faults_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Context> contexts_;  // with 0
  std::array<bool, max_contexts + 1> slots_{};
  uint32_t next_id_ = 1;
  std::vector<uint32_t> owner_;
  std::vector<uint16_t> pins_;
  std::vector<bool> retired_, believed_clean_;
  uint64_t free_ = 0, retired_count_ = 0;
  uint64_t epoch_ = 0;  // resets so far: older pins are void
  std::atomic<uint64_t> changes_{0};
};

}  // namespace kz::softtpu
