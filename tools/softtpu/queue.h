// SPDX-License-Identifier: GPL-2.0-or-later
// One queue pair of the software TPU and the worker that serves it.
//
// The worker takes commands off the ring in order and runs them one at a time, so that a fence holds by
// itself. Entries are fetched ahead into `pending`, so that an ABORT acts on commands behind which it stands;
// it is completed in its turn.
//
// Threads: registers belong to the main thread. ABORT, CTX_DESTROY and misplaced completions (fault Q12) come
// from other queues' workers. Locks, in this order: fetch_m_, m_; complete_m_ alone. None is held while a
// command runs or while anybody waits for a worker to stop.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/dma_table.h"
#include "tools/softtpu/engine.h"
#include "tools/softtpu/interrupts.h"

namespace kz::softtpu {

class Queue;

// What all queues of a device share.
struct QueueShared {
  DmaTable& bus;
  Engine& engine;
  Interrupts& irqs;
  FaultBoard& faults;
  unsigned vectors = 0;
  std::chrono::nanoseconds service_time{0};  // not 0: every command takes exactly this long
  std::vector<std::unique_ptr<Queue>> queues = {};
  std::atomic<int64_t> ready_at{INT64_MAX};  // steady clock, ns: queues serve from then on
  std::atomic<bool> reachable{true};         // powered and not gone: doorbells are heard

  static constexpr uint32_t max_order = 12;
};

class Queue {
 public:
  Queue(uint16_t id, QueueShared& shared);
  ~Queue();
  Queue(const Queue&) = delete;

  // ---- registers, main thread; `reg` is an offset in the queue block ----
  uint32_t read(uint32_t reg) const;
  void write(uint32_t reg, uint32_t value);
  void ring();  // a trapped doorbell write
  int doorbell_fd() const { return doorbell_.get(); }
  void stop();            // and joins; what was fetched is dropped
  void reset();           // stop, and zero head, tail, phase and errors
  void restore();         // reset, and all registers to their defaults
  void renew_doorbell();  // a new eventfd: the last client may still hold the old one
  // Every 10 ms: ends a command that runs longer than `watchdog` (0: never) and looks for ABORTs behind a
  // running one.
  void tick(std::chrono::milliseconds watchdog);
  void poke();  // look again: readiness or reachability changed

  // ---- any thread ----
  void request_stop();
  // False when the worker is still busy at the deadline.
  bool wait_stopped(const Deadline& deadline);
  bool running() const { return (state_ & 0xff) == KZ_QSTATE_RUN; }
  uint32_t context() const { return context_; }
  // Ends the command if it has not completed. True when it was found. `spread` (fault Q17) takes its
  // neighbours too.
  bool abort(uint16_t cid, bool spread);
  // Its context is being destroyed: stops and disables. Called by another queue's worker.
  void disable();
  // Puts a completion of another queue into this ring (fault Q12). False when there is no room.
  bool accept_stray(kz_cqe cqe);

 private:
  enum class Why : uint8_t { none, abort, timeout };
  struct Entry {
    kz_cmd cmd{};
    bool aborted = false;
    bool abort_acting = false, abort_acted = false;  // an ABORT that does, or has done, its work
    uint64_t abort_result = 0;
    uint16_t abort_status = KZ_ST_OK;
  };
  struct Config {
    uint64_t sq = 0, cq = 0, dbrec = 0;
    uint32_t order = 0, vector = 0;
  };

  // queue.cc: registers and life
  void control(uint32_t value);
  void start();
  std::optional<Config> checked_config() const;
  void set_error(uint32_t error);
  bool stopping() const { return stop_; }
  uint32_t entries() const { return 1u << run_.order; }

  // queue_worker.cc: the worker
  void run();
  void run_inner();
  bool wait_ready();
  bool wait_work();  // true: the doorbell rang
  void wait_stop();
  bool can_serve() const;
  void serve(bool rung);
  std::optional<Entry> next();
  bool sleep_until(Clock::time_point when);  // false: stopped or the command was ended
  void run_one(Entry entry);
  void begin(const Entry& entry);
  Why end();
  Outcome dispatch(Entry& entry);
  void pace(Clock::time_point start);
  void finish(const kz_cmd& cmd, Outcome outcome);
  void spurious_interrupt();
  std::optional<uint16_t> front_check(const kz_cmd& cmd);

  // queue_ring.cc: rings
  struct Counts {
    uint32_t tail, head;
  };
  std::optional<Counts> load_counts();
  bool fetch(bool rung);  // true: something new
  bool overrun(const Counts& counts, bool rung);
  bool glance();  // fetch by another thread, where no access can wait
  void act_on_aborts();
  void act_on_abort(Entry& entry);
  void complete(const kz_cmd& cmd, uint16_t status, uint64_t result);
  bool post(kz_cqe cqe, bool may_wait);
  bool wait_room();
  bool store(uint64_t iova, const kz_cqe& cqe);
  void interrupt(uint32_t vector);

  const uint16_t id_;
  QueueShared& shared_;

  // Registers; main thread, but for the atomics.
  Config config_;
  std::atomic<uint32_t> ctrl_{0};
  std::atomic<uint32_t> context_{0};
  std::atomic<uint32_t> state_{KZ_QSTATE_OFF};
  std::atomic<uint32_t> sq_head_{0}, cq_tail_{0};

  Fd doorbell_, wake_;
  std::atomic<bool> rung_{false};  // by a register write
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> cancel_{false};  // for the command that runs

  std::mutex fetch_m_;
  Config run_;  // as it was when the worker started

  mutable std::mutex m_;
  std::condition_variable changed_;
  std::deque<Entry> pending_;
  bool alive_ = false;  // the worker has not ended
  bool busy_ = false;
  uint16_t busy_cid_ = 0;
  Why why_ = Why::none;
  Clock::time_point busy_since_;
  std::thread::id worker_;
  pid_t worker_tid_ = 0;
  // By tick(): the command that it saw last, and how long the worker had waited for a processor then.
  Clock::time_point seen_busy_;
  std::chrono::nanoseconds waited_before_{0};

  std::mutex complete_m_;
  uint32_t cq_head_ = 0;  // as last seen

  // The worker's own.
  Clock::time_point last_end_;
  bool slept_ = true;  // idle since the last command
};

}  // namespace kz::softtpu
