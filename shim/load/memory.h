// SPDX-License-Identifier: GPL-2.0-or-later
// The memory that one worker's operations move, and what each place should hold.
#pragma once

#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "shim/device.h"
#include "shim/load/job.h"
#include "shim/load/payload.h"
#include "shim/load/tables.h"

namespace kz::load {

// Places in HBM for payloads. Each is idle or in use by one command; an idle one holds the payload of its
// tag, unless the copy that should have brought it failed.
class Homes {
 public:
  Homes(Context& context, unsigned count, uint64_t bytes_each);
  struct Home {
    HbmAddr addr;
    PayloadTag tag;
    bool known = false;
  };
  Home& operator[](uint32_t i) { return homes_[i]; }
  // Takes an idle one; `to_read`: one that holds something known, if there is any.
  uint32_t take(std::mt19937_64& rng, bool to_read);
  void give_back(uint32_t i) { idle_.push_back(i); }
  size_t size() const { return homes_.size(); }
  const HbmBlock& memory() const { return *block_; }

 private:
  std::unique_ptr<HbmBlock> block_;
  std::vector<Home> homes_;
  std::vector<uint32_t> idle_;
};

// One kind of computation with operands in HBM that never change. It has two variants with different results,
// used in turn at each place for a result, so that one that was not written is not taken for a new one.
class Calculation {
 public:
  // `slots` results may be under way at once. Loads the operands through `queue`.
  Calculation(Op op, const Job& job, Device& device, Context& context, Queue& queue, unsigned slots,
              TableCache& tables);
  // The variant that was not seen last at this place. What failed or was wrong does not count: it may not
  // have been written.
  unsigned next_variant(uint32_t slot) const { return seen_[slot] ^ 1u; }
  void note_seen(uint32_t slot, unsigned variant) { seen_[slot] = static_cast<uint8_t>(variant); }
  Command command(uint32_t slot, unsigned variant) const;
  HbmAddr result(uint32_t slot) const { return block_->addr() + (2 * operand_ + slot * result_); }
  const HbmBlock& memory() const { return *block_; }
  uint64_t result_bytes() const { return tables_->want[0].size(); }
  std::span<const std::byte> want(unsigned variant) const { return tables_->want[variant]; }
  bool right(std::span<const std::byte> got, unsigned variant) const;

 private:
  void load(Device& device, Queue& queue, const TableCache& tables);

  Op op_;
  const Job& job_;
  uint64_t operand_ = 0, result_ = 0;  // bytes, aligned
  std::unique_ptr<HbmBlock> block_;
  std::shared_ptr<const Tables> tables_;
  std::vector<uint8_t> seen_;  // of each place for a result: the variant that was right there last
};

// Host memory, one piece a slot.
class HostSlots {
 public:
  HostSlots(Device& device, unsigned slots, uint64_t bytes_each);
  std::span<std::byte> bytes(uint32_t slot) { return buffer_->bytes().subspan(slot * each_, each_); }
  Place place(uint32_t slot) const { return at(buffer_->iova() + slot * each_); }

 private:
  uint64_t each_;
  std::shared_ptr<DmaBuffer> buffer_;
};

}  // namespace kz::load
