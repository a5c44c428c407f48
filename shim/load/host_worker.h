// SPDX-License-Identifier: GPL-2.0-or-later
// The same load without a device: reads of a file, commands to a character device, or nothing at all,
// straight through io_uring. It shows what the generator and the kernel's path cost by themselves.
#pragma once

#include <liburing.h>

#include <vector>

#include "shim/base/fd.h"
#include "shim/load/arrivals.h"
#include "shim/load/ledger.h"

namespace kz::load {

class HostWorker {
 public:
  HostWorker(const Job& job, const WorkerId& id, Ledger& ledger, size_t index);
  ~HostWorker();
  HostWorker(const HostWorker&) = delete;

  // Both in the worker's own thread, to which its ring belongs. prepare() throws Error.
  void prepare();
  void run(Clock::time_point start) noexcept;

 private:
  void open_target();
  void set_up_ring();
  void write_entries();
  void loop();
  void set(uint32_t at, uint32_t slot);
  unsigned put(int64_t now);
  void enter(unsigned fresh, unsigned wait_for, int64_t longest_ns);
  void reap(int64_t now);
  void note_failure(int32_t result);
  bool may_send(int64_t now) const;
  void note_due(int64_t now);
  void note_full();
  void give_up_backlog(int64_t now);

  const Job& job_;
  Ledger& ledger_;
  const size_t index_;
  WorkerAccount& account_;
  OpAccount& book_;
  Schedule due_, next_;  // operations due by now, and the next to start
  int64_t start_ = 0, end_ = 0;

  io_uring ring_{};
  bool ring_is_there_ = false, registered_ring_ = false, fixed_file_ = false;
  Fd fd_;
  uint64_t blocks_ = 0;  // of the file
  uint32_t block_bytes_ = 0;
  int32_t good_result_ = 0;
  std::byte* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  uint64_t random_;
  std::vector<int64_t> began_;  // of each slot, ns
  std::vector<uint32_t> idle_;  // slots
  unsigned under_way_ = 0;
  unsigned not_taken_ = 0;  // put into the ring, and not taken by the kernel yet
  uint64_t full_at_ = UINT64_MAX;
  bool sending_ = true;
};

}  // namespace kz::load
