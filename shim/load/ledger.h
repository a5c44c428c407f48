// SPDX-License-Identifier: GPL-2.0-or-later
// The books of a load: what every worker sent and how it ended, in memory that outlives any of its processes.
//
// For each worker and operation: sent = completed + failed + cancelled + lost, once it has ended. A process
// that dies leaves its numbers; what it had outstanding is counted as cancelled by its death (settle()).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/load/histogram.h"
#include "shim/load/job.h"

namespace kz::load {

// Why an operation was given up by the host.
enum class Cancel : uint8_t { stopped, reset, device_gone, process_died };
inline constexpr size_t kCancels = 4;
std::string_view to_string(Cancel why);

// KZ_ST_* statuses, and a last one for all others (errno of an operation that goes to no device).
inline constexpr size_t kStatuses = 17;
std::string status_name(size_t index);

// Counters have one writer and may be read by another process meanwhile.
inline void bump(uint64_t& counter, uint64_t n = 1) {
  __atomic_store_n(&counter, counter + n, __ATOMIC_RELAXED);
}
inline void raise_to(uint64_t& counter, uint64_t n) {
  if (n > counter) __atomic_store_n(&counter, n, __ATOMIC_RELAXED);
}
inline uint64_t peek(const uint64_t& counter) { return __atomic_load_n(&counter, __ATOMIC_RELAXED); }

struct OpAccount {
  uint64_t sent, completed, failed, cancelled, lost;
  uint64_t bytes;       // moved by completed ones
  uint64_t verified;    // whose result was looked at
  uint64_t mismatched;  // and found wrong; they count as completed
  // ns from the intended start to the completion of completed ones, to the end of those that never started
  Histogram latency;
  uint64_t outstanding() const { return sent - completed - failed - cancelled - lost; }
};

struct WorkerAccount {
  enum State : uint32_t { unused, preparing, ready, running, ended, failed_to_start, broke_off };
  uint32_t state;
  uint32_t errc;  // of `error`
  uint32_t has_error;
  uint32_t device_lost;
  char error[512];    // why it failed to start or broke off
  char finding[256];  // the first thing that was wrong with a result, or failed with a reason
  OpAccount ops[kOps];
  std::array<uint64_t, kStatuses> failed_by;
  std::array<uint64_t, kCancels> cancelled_by;
  // Back-pressure: starts later than the job's `late`, the latest one, most operations that were due and not
  // started, those due and never started, and how often a due operation found no room.
  uint64_t late, late_max_ns, backlog_max, not_started, ring_full;
  uint64_t queue_faults;        // forbidden fields of the queues' audits, added up
  uint64_t began_ns, ended_ns;  // CLOCK_MONOTONIC

  void fail(State how, const Error& error);
};

// All of a plan, always in the same order.
std::vector<WorkerId> workers_of(const Plan& plan);

class Ledger {
 public:
  explicit Ledger(const Plan& plan);    // a new one. Throws Error(no_memory)
  Ledger(const Plan& plan, Fd shared);  // the one that another process made of the same plan
  int fd() const { return fd_.get(); }

  const std::vector<WorkerId>& workers() const { return ids_; }
  WorkerAccount& account(size_t worker) { return accounts_[worker]; }
  const WorkerAccount& account(size_t worker) const { return accounts_[worker]; }

  // 0 go on, 1 send nothing more and wait for what is outstanding, 2 wait for nothing.
  int stop() const { return __atomic_load_n(&head_->stop, __ATOMIC_RELAXED); }
  void ask_stop(int level) {
    if (level > stop()) __atomic_store_n(&head_->stop, level, __ATOMIC_RELAXED);
  }
  // When the load begins, CLOCK_MONOTONIC ns; 0: not yet known.
  int64_t start() const { return __atomic_load_n(&head_->start, __ATOMIC_ACQUIRE); }
  void set_start(int64_t ns) { __atomic_store_n(&head_->start, ns, __ATOMIC_RELEASE); }
  // Threads that io_uring started for us, most at any time.
  uint64_t io_workers() const { return peek(head_->io_workers); }
  void note_io_workers(uint64_t n) { raise_to(head_->io_workers, n); }
  void set_state(size_t worker, WorkerAccount::State s) {
    __atomic_store_n(&accounts_[worker].state, s, __ATOMIC_RELEASE);
  }
  WorkerAccount::State state(size_t worker) const {
    return static_cast<WorkerAccount::State>(__atomic_load_n(&accounts_[worker].state, __ATOMIC_ACQUIRE));
  }
  // A worker ends early. So do all others: without its share they are not the load that was asked for.
  void break_off(size_t worker, const Error& error) {
    accounts_[worker].fail(WorkerAccount::broke_off, error);
    ask_stop(1);
  }
  // Of workers whose process writes no more: what they had outstanding is cancelled. True where there was
  // any, or the worker had not come to its end.
  bool settle(unsigned process, Cancel why);
  // From here on this object has a copy of its own: what processes still write is not seen. Throws
  // Error(no_memory).
  void detach();

 private:
  struct Head {
    int32_t stop;
    int32_t reserved;
    int64_t start;
    uint64_t io_workers;
  };
  void map();

  std::vector<WorkerId> ids_;
  Fd fd_;
  Mapping memory_;
  Head* head_ = nullptr;
  WorkerAccount* accounts_ = nullptr;
};

}  // namespace kz::load
