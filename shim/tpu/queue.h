// SPDX-License-Identifier: GPL-2.0-or-later
// One queue pair of the reference TPU, driven from user space: rings in shared memory, doorbell and interrupt
// through io_uring, and books on everything the device does. Protocol: shim/uapi/kz_cmd.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shim/base/host_load.h"
#include "shim/queue.h"
#include "shim/ring.h"
#include "shim/tpu/core.h"

namespace kz::tpu {

class TpuQueue final : public Queue {
 public:
  // Sets queue `id` up for `context` and waits until it runs. `on_close` is called with the number at the
  // end. Throws Error(timeout), Error(gone), Error(protocol) when the device refuses the set-up.
  TpuQueue(std::shared_ptr<Core> core, uint16_t id, uint32_t context, const QueueSpec& spec,
           std::function<void(uint16_t)> on_close);
  ~TpuQueue() override;
  TpuQueue(const TpuQueue&) = delete;

  uint16_t id() const override { return id_; }
  uint32_t depth() const override { return entries_; }
  uint32_t outstanding() const override { return outstanding_; }
  Ticket submit(const Command& command, bool hold) override;
  void ring() override;
  uint16_t cid(Ticket ticket) const override;
  std::vector<Completion> poll() override;
  std::vector<Completion> wait(Deadline deadline) override;
  std::vector<Completion> reset(Deadline deadline) override;
  void overfill(const Command& command) override;
  const QueueAudit& audit() const override;
  Signal signal() const override;
  void take_signal() override;
  void look_for_device() const override;

 private:
  // A command id's state. Ids go round a table four times the ring's length, so that a late or doubled
  // completion is recognised long after its command ended.
  struct Slot {
    enum class State : uint8_t { unused, waiting, ended } state = State::unused;
    bool quiet = false;
    Ticket ticket = 0;
    Clock::time_point submitted;
  };

  // queue.cc: set-up, submission, life
  uint32_t reg(uint32_t offset) const;
  bool dead() const { return generation_ != core_->generation; }
  void check_usable(const char* what) const;
  void configure();
  void await_running();
  void clear_rings();
  void close() noexcept;
  Ticket put(const Command& command);
  std::vector<Completion> drop_all();

  // queue_completions.cc: the completion ring and its books
  void consume(std::vector<Completion>& out);
  void complete(const kz_cqe& cqe, Clock::time_point now, std::vector<Completion>& out);
  void note_stray(const kz_cqe& cqe);
  void check_sq_head(const kz_cqe& cqe);
  void look_out_of_turn();
  bool head_is_valid() const;
  uint64_t visible() const;

  // queue_interrupts.cc: waiting, and the books of interrupts
  void sleep_polling(unsigned round, const Deadline& deadline);
  void sleep_on_vector(const Deadline& deadline, bool have_some);
  std::chrono::nanoseconds slice(bool have_some) const;
  void process(std::span<const Ring::Done> results);
  void disarm() noexcept;
  bool exact() const;
  uint64_t interrupts() const { return core_->vectors.count(vector_) - irq_base_; }
  uint64_t owed() const;
  bool settle() const;
  void note_excess() const;

  std::shared_ptr<Core> core_;
  const uint16_t id_;
  const uint32_t context_;
  const QueueSpec spec_;
  const uint32_t entries_;
  const unsigned vector_;
  const uint16_t cid_base_;
  std::function<void(uint16_t)> on_close_;
  const uint64_t generation_;

  std::unique_ptr<DmaMemory> sq_memory_;  // commands and doorbell record: the device reads
  std::unique_ptr<DmaMemory> cq_memory_;  // completions: the device writes
  kz_cmd* sq_ = nullptr;
  kz_dbrec* record_ = nullptr;
  kz_cqe* cq_ = nullptr;
  std::vector<kz_cqe> last_lap_;  // what each completion slot held when we consumed it

  Ring ring_;
  int doorbell_ = -1;
  bool armed_ = false;       // a read of the vector is under way
  bool unreadable_ = false;  // the ring cannot wait on the vector
  uint64_t irq_count_ = 0;   // filled by that read

  std::vector<Slot> slots_;
  uint32_t next_slot_ = 0;
  Ticket next_ticket_ = 1;
  uint32_t tail_ = 0, head_ = 0;  // free-running, as in the doorbell record
  uint32_t outstanding_ = 0, quiet_outstanding_ = 0;
  bool held_ = false;    // something was put that was not rung for
  bool strays_ = false;  // more completions than commands: the device may wait for room

  bool joined_ = false, alone_ = false;  // on the vector, at the opening
  uint64_t epoch_ = 0, irq_base_ = 0;
  uint64_t irq_before_ = 0;  // interrupts up to the latest queue reset
  uint64_t loud_ = 0;        // completions since then that raise an interrupt
  uint64_t unsure_ = 0;      // and those that may have raised one
  Clock::time_point last_loud_{};
  mutable std::optional<QuietDeadline> grace_;  // of the interrupts that are owed
  // Settled when somebody waits or asks for the audit.
  mutable uint64_t lost_ = 0;  // interrupts that we gave up waiting for
  mutable uint64_t noted_excess_ = 0;
  mutable QueueAudit audit_;
};

}  // namespace kz::tpu
