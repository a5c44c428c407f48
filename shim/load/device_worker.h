// SPDX-License-Identifier: GPL-2.0-or-later
// One thread that loads a device: keeps to its schedule, checks what comes back, and keeps the books.
#pragma once

#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

#include "shim/device.h"
#include "shim/load/arrivals.h"
#include "shim/load/clerk.h"
#include "shim/load/hooks.h"
#include "shim/load/ledger.h"
#include "shim/load/memory.h"

namespace kz::load {

class DeviceWorker {
 public:
  // `clerk` may be nullptr where the job neither allocates nor reads telemetry.
  DeviceWorker(const Job& job, const WorkerId& id, Device& device, Clerk* clerk, Ledger& ledger, size_t index,
               const Hooks& hooks);
  ~DeviceWorker();

  // In the device's own thread: opens context and queues, gets memory, fills it. Throws Error, also
  // Error(unsupported) where the device cannot do the job.
  void prepare(TableCache& tables);  // also throws Stopped
  // In a thread of its own. Throws nothing: what ends it early is in the books.
  void run(Clock::time_point start) noexcept;
  // In the device's own thread again: judges the queues' books, gives everything back.
  void finish() noexcept;

 private:
  // An operation under way, and the piece of host memory that belongs to it.
  struct Slot {
    Op op = Op::nop;
    Clock::time_point intended, sent;
    uint32_t home = 0, from = 0;  // places in HBM: the one written or read, and the source of copy_hbm
    uint64_t length = 0;
    HbmAddr freed;  // the block of a free under way
    uint64_t freed_bytes = 0;
    unsigned variant = 0;
    Op checked = Op::nop;  // what a check belongs to
    bool by_clerk = false, in_use = false;
  };
  struct Lane {  // a queue and what is under way on it
    std::unique_ptr<Queue> queue;
    std::unordered_map<Ticket, uint32_t> slots;
    bool held = false;
  };

  // device_worker.cc: the loop
  void loop(Clock::time_point start);
  bool send(Clock::time_point now);
  bool send_one(Clock::time_point intended, Clock::time_point now);
  void ring_held();
  void note_backlog(Clock::time_point now);
  void give_up_backlog(Clock::time_point now);
  void rest(Clock::time_point now);
  void look_for_device() const;
  void look_for_lost(Clock::time_point now);
  void give_up(Cancel why);
  void collect();
  unsigned under_way() const;
  bool may_send(Clock::time_point now);
  Lane* free_lane();
  bool read_back(Clock::time_point now);

  // device_operations.cc: what an operation is, and whether it ended right
  void check_device() const;
  void fill_homes(const TableCache& tables);
  Op draw();
  Command make(Op op, uint32_t slot);
  void start_by_clerk(Op op, uint32_t slot);
  void ended(Lane& lane, const Completion& c);
  void answered(ClerkAnswer& answer);
  void good(Lane* lane, uint32_t slot, Clock::time_point seen);
  void bad(uint32_t slot, Status status);
  void settle_homes(const Slot& s, bool ok);
  bool is_ours(const HbmBlock& block) const;
  void check_result(Lane& lane, uint32_t slot);
  void check_home(Lane& lane, uint32_t home);
  void look_at(uint32_t slot);
  void look_at_copy(uint32_t slot);
  void release(uint32_t slot);
  void wrong(Op op, const std::string& what);
  void note_finding(const std::string& what);
  void show_wrong(const Slot& s, HbmAddr addr, std::span<const std::byte> want,
                  std::span<const std::byte> got) const;
  OpAccount& book(Op op) { return account_.ops[static_cast<size_t>(op)]; }
  uint64_t draw_size(const SizeRange& range);

  const Job& job_;
  const WorkerId id_;
  Device& device_;
  Clerk* const clerk_;
  Ledger& ledger_;
  const size_t index_;
  WorkerAccount& account_;
  const Hooks& hooks_;
  std::mt19937_64 rng_;

  std::unique_ptr<Context> context_;
  std::vector<Lane> lanes_;
  size_t next_lane_ = 0;
  std::vector<Queue*> busy_;  // those with something outstanding, of the latest rest()
  std::unique_ptr<HostSlots> host_;
  std::unique_ptr<Homes> homes_;
  std::unique_ptr<Calculation> matmul_, vector_;
  ClerkInbox inbox_;
  std::vector<std::unique_ptr<HbmBlock>> blocks_;
  unsigned allocs_under_way_ = 0, by_clerk_ = 0;

  std::vector<Slot> slots_;
  std::vector<uint32_t> idle_slots_;
  unsigned weight_ = 0;  // of the whole mix
  uint64_t sequence_ = 0, started_ = 0;
  uint64_t ended_ = 0, ended_before_ = 0;  // operations; at the latest look for lost ones
  uint32_t next_home_ = 0;                 // to be read back at the end
  Clock::time_point read_back_until_{};
  Schedule due_, next_;  // operations due by now, and the next to start
  Clock::time_point start_, end_, next_look_;
  uint64_t full_at_ = UINT64_MAX;  // the operation that found no room last
  bool sending_ = true, blocked_ = false;
};

}  // namespace kz::load
