// SPDX-License-Identifier: GPL-2.0-or-later
// One queue pair of the reference TPU, driven from user space: rings in shared
// memory, doorbell and interrupt through io_uring, and books on everything the
// device does. Protocol: shim/uapi/kz_cmd.h.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shim/queue.h"
#include "shim/ring.h"
#include "shim/tpu/core.h"

namespace kz::tpu {

class TpuQueue final : public Queue {
public:
  TpuQueue(std::shared_ptr<Core> core, uint16_t id, uint32_t context,
           const QueueSpec &spec, std::function<void(uint16_t)> on_close);
  ~TpuQueue() override;

  uint16_t id() const override { return id_; }
  uint32_t depth() const override { return entries_; }
  uint32_t outstanding() const override { return outstanding_; }
  Ticket submit(const Command &command, bool hold) override;
  void ring() override;
  uint16_t cid(Ticket ticket) const override;
  std::vector<Completion> poll() override;
  std::vector<Completion> wait(Deadline deadline) override;
  std::vector<Completion> reset(Deadline deadline) override;
  void overfill(const Command &command) override;
  const QueueAudit &audit() const override;

private:
  // A command id's slot. Ids go round a table four times the ring's length, so
  // that a late or doubled completion is recognised long after its command
  // ended.
  struct Slot {
    enum class State : uint8_t { unused, waiting, ended } state = State::unused;
    bool quiet = false;
    Ticket ticket = 0;
    Clock::time_point submitted;
  };

  uint32_t reg(uint32_t offset) const;
  bool dead() const { return generation_ != core_->generation; }
  void check_alive(const char *what) const;
  void configure();
  void clear_rings();
  Ticket put(const Command &command);
  void consume(std::vector<Completion> &out);
  void complete(const kz_cqe &cqe, std::vector<Completion> &out);
  std::vector<Completion> drop_all();
  void arm();
  bool await_interrupt(Deadline deadline);
  void note_stalled();
  bool take_interrupts(std::chrono::nanoseconds wait) const;
  void settle() const;

  std::shared_ptr<Core> core_;
  const uint16_t id_;
  const uint32_t context_;
  const QueueSpec spec_;
  const uint32_t entries_;
  const unsigned vector_;
  std::function<void(uint16_t)> on_close_;
  uint64_t generation_;

  std::unique_ptr<DmaMemory> memory_;
  kz_cmd *sq_ = nullptr;
  kz_cqe *cq_ = nullptr;
  kz_dbrec *record_ = nullptr;
  std::vector<kz_cqe>
      last_lap_; // what each completion slot held when we consumed it

  // Books of interrupts are settled when somebody asks for the audit, hence
  // mutable.
  mutable Ring ring_;
  mutable bool armed_ = false;
  mutable uint64_t irq_count_ = 0; // filled by the ring's read

  std::vector<Slot> slots_;
  uint32_t next_cid_ = 0;
  Ticket next_ticket_ = 1;
  uint32_t tail_ = 0, head_ = 0; // free-running, as in the doorbell record
  uint32_t outstanding_ = 0;
  bool overfilled_ = false;
  bool held_ = false;
  uint64_t loud_ = 0; // completions that should have raised an interrupt
  uint64_t lost_interrupts_ = 0; // completions found by looking
  mutable uint64_t interrupts_ = 0;
  mutable QueueAudit audit_;
};

} // namespace kz::tpu
