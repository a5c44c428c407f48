// SPDX-License-Identifier: GPL-2.0-or-later
// One queue of the driver: commands by io_uring (polled queues, and where it is forbidden: by ioctl), answers
// as they come, the driver's own books of what the device did.
#pragma once

#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <vector>

#include "shim/dev/core.h"
#include "shim/dev/way.h"
#include "shim/queue.h"

namespace kz::dev {

class DevQueue final : public Queue {
 public:
  DevQueue(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context,
           std::shared_ptr<QueueHandle> handle, const QueueSpec& spec, uint64_t epoch);
  ~DevQueue() override;
  DevQueue(const DevQueue&) = delete;

  uint16_t id() const override { return static_cast<uint16_t>(handle_->id()); }
  uint32_t depth() const override { return static_cast<uint32_t>(slots_.size()); }
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
  // The number of the slot is the command id that the driver knows the command by.
  struct Slot {
    Ticket ticket = 0;  // 0: free
    kz_cmd command{};
    Clock::time_point submitted, first_refusal;
  };

  bool dead() const;
  void check_usable(const char* what) const;
  void hand_over();
  void vacate(uint32_t slot);
  void answer(uint32_t slot, Status status, uint64_t result, std::vector<Completion>& out);
  void take(const Ended& ended, std::vector<Completion>& out);
  void refused(uint32_t slot, int error, std::vector<Completion>& out);
  void take_all(std::vector<Completion>& out);
  void wait_for_some(const Deadline& deadline, std::vector<Completion>& out);
  void give_up_rest(std::vector<Completion>& out);
  std::vector<Completion> drain(const Deadline& deadline);
  void throw_kept();
  void start_update(const cmd::FwUpdate& update, uint32_t slot);
  void take_updates(std::vector<Completion>& out);

  std::shared_ptr<Core> core_;
  std::shared_ptr<ContextState> context_;
  std::shared_ptr<QueueHandle> handle_;
  const uint64_t epoch_;
  std::unique_ptr<Way> way_;
  std::vector<Slot> slots_;
  std::deque<uint32_t> free_;
  std::vector<uint32_t> held_;  // put, not handed over
  std::vector<Ended> ended_;    // answers not looked at yet
  std::exception_ptr
      failure_;  // of a command, to be thrown when what had ended before it has been handed out
  // Firmware images under way, each a call of its own in a thread; and those that nobody waits for any more.
  std::vector<std::future<Ended>> updates_, given_up_;
  Ticket next_ticket_ = 1;
  uint32_t outstanding_ = 0;
  uint64_t twice_ = 0, unknown_ = 0;  // answers of the driver to nothing that is outstanding
  mutable QueueAudit audit_;
};

// Throws Error(busy) when the device has no queue left, Error(usage), Error(unsupported) for a vector of
// one's own choice, Error(gone), Error(permission) in the privileged context.
std::unique_ptr<Queue> open_dev_queue(const std::shared_ptr<Core>& core,
                                      const std::shared_ptr<ContextState>& context, const QueueSpec& spec);

}  // namespace kz::dev
