// SPDX-License-Identifier: GPL-2.0-or-later
// Queues whose books are judged at the end of the test, and waits that say why nothing came.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shim/device.h"

namespace kz::test {

// Facts about a command that did not complete; the detail of ev::no_completion.
struct Stall {
  std::string command;          // "COPY"
  std::string after = "valid";  // "malformed" | "zero_size" | "valid": what the queue was last given
  std::chrono::milliseconds budget{0};
  bool fetched = false;  // the device took it off the ring
  bool fetched_known = false;
  bool again_after_ring = false;       // a second doorbell brought it
  std::string same_queue = "unknown";  // whether a NOP behind it completes: "complete" | "stuck" | "unknown"
  std::string written = "unknown";     // whether the device counts a completion that nobody saw: "yes" | "no"
  std::string counted =
      "unknown";  // whether the device counts a NOP as done that nobody saw end: "yes" | "no"
  uint16_t queue = 0;
};

// A Queue that forwards everything, remembers what is outstanding, and hands its audit to the harness when it
// dies. A non-zero forbidden audit field fails the test with ev::audit. When it is destroyed by an exception
// with commands outstanding it first finds out whether the device fetched them and whether another doorbell
// brings them.
class QueueGuard final : public Queue {
 public:
  QueueGuard(Device& device, std::unique_ptr<Queue> inner, bool judged);
  ~QueueGuard() override;
  uint16_t id() const override { return inner_->id(); }
  uint32_t depth() const override { return inner_->depth(); }
  uint32_t outstanding() const override { return inner_->outstanding(); }
  Ticket submit(const Command& command, bool hold = false) override;
  void ring() override { inner_->ring(); }
  uint16_t cid(Ticket ticket) const override { return inner_->cid(ticket); }
  std::vector<Completion> poll() override { return note(inner_->poll()); }
  std::vector<Completion> wait(Deadline deadline) override;
  std::vector<Completion> reset(Deadline deadline) override;
  void overfill(const Command& command) override { inner_->overfill(command); }
  const QueueAudit& audit() const override { return inner_->audit(); }
  Signal signal() const override { return inner_->signal(); }
  void take_signal() override { inner_->take_signal(); }
  void look_for_device() const override { inner_->look_for_device(); }

  // What is known about the oldest outstanding command; rings the doorbell once more and waits up to 300 ms.
  // What comes then is kept and returned by the next poll() or wait().
  Stall stalled(std::chrono::nanoseconds budget);
  // stalled(), reported as ev::no_completion, and Error(timeout).
  [[noreturn]] void give_up(std::chrono::nanoseconds budget);
  // Takes what has completed and keeps it for the next poll() or wait().
  void peek();
  bool is_outstanding(Ticket ticket) const { return pending_.contains(ticket); }

 private:
  void give_up_on_interrupts();
  std::vector<Completion> note(std::vector<Completion> done);
  void ask_registers(Stall& stall, Ticket ticket);
  std::optional<uint64_t> done_alone();
  void try_nop_behind(Stall& stall);
  bool collect_until(Ticket ticket, std::chrono::nanoseconds budget);

  Device& device_;
  std::unique_ptr<Queue> inner_;
  bool judged_;
  int exceptions_;
  std::thread::id thread_;  // the one that may touch this queue
  struct Sent {
    std::string name, kind;
  };
  std::map<Ticket, Sent> pending_;
  std::string last_kind_ = "valid";
  std::vector<Completion> late_;
  Ticket base_ = 0;        // the last ticket before the latest queue reset
  uint64_t consumed_ = 0;  // completions taken since then
};

// Opens a queue of the context under guard. `judged` false: the test breaks the queue's rules on purpose.
std::unique_ptr<QueueGuard> open_queue(Device& device, Context& context, const QueueSpec& spec = {},
                                       bool judged = true);
// The same on the device of the running test.
std::unique_ptr<QueueGuard> open_queue(Context& context, const QueueSpec& spec = {}, bool judged = true);

// Waits until nothing is outstanding and returns all completions in the order seen. A command that does not
// come is diagnosed (ev::no_completion) and ends the test by Error(timeout).
std::vector<Completion> finish(QueueGuard& queue, std::chrono::nanoseconds budget = std::chrono::seconds(5));
// Runs one command like kz::run, with that diagnosis.
Completion run_one(QueueGuard& queue, const Command& command,
                   std::chrono::nanoseconds budget = std::chrono::seconds(5));
// The same, and anything but Status::ok is reported (ev::status_wrong, poison as ev::ecc) and thrown as
// Error(status).
Completion run_good(QueueGuard& queue, const Command& command,
                    std::chrono::nanoseconds budget = std::chrono::seconds(5));
// Runs one command and checks its status; another one fails the test (non-fatally) with ev::status_wrong.
Completion expect_status(QueueGuard& queue, const Command& command, Status want, const std::string& what);
// The name of a command for messages: "COPY", and for raw ones their opcode's name or number.

}  // namespace kz::test
