// SPDX-License-Identifier: GPL-2.0-or-later
// A queue pair: submit work, collect completions, and keep the books on what the device did.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shim/base/units.h"
#include "shim/command.h"

namespace kz {

struct QueueSpec {
  unsigned order = 5;                // log2 of entries
  std::optional<uint16_t> vector;    // default: the one with the queue's number
  bool interrupts = true;            // false: completions are polled
};

// What the device was seen to do on this queue; every field but the first four must stay 0 on a sound device.
struct QueueAudit {
  uint64_t submitted = 0;
  uint64_t completed = 0;
  uint64_t dropped = 0;                        // ended by us with Status::lost at a reset
  uint64_t interrupts = 0;
  uint64_t completion_without_interrupt = 0;   // found by looking after the interrupt's deadline
  uint64_t interrupt_without_completion = 0;
  uint64_t duplicate_completion = 0;           // a command id completed twice
  uint64_t unknown_completion = 0;             // a command id that was never submitted here
  uint64_t wrong_queue = 0;                    // the queue field names another queue
  uint64_t bad_sq_head = 0;                    // beyond what was submitted
  uint64_t bad_phase = 0;                      // a completion appeared in a slot out of turn
  uint64_t reserved_set = 0;                   // a status code that the ABI does not define
  bool clean() const;
};

// Not thread-safe: one thread per queue. Destruction stops the queue and frees its rings.
class Queue {
 public:
  virtual ~Queue() = default;
  virtual uint16_t id() const = 0;
  virtual uint32_t depth() const = 0;         // entries: how many commands may be outstanding
  virtual uint32_t outstanding() const = 0;

  // Writes the command into the ring; rings the doorbell unless `hold`. Throws Error(busy) when the ring is full.
  virtual Ticket submit(const Command& command, bool hold = false) = 0;
  // Rings the doorbell for everything held. A queue with `stuffed` entries may be rung again at any time.
  virtual void ring() = 0;
  // The command id the device knows the ticket by (for Abort). Ticket must be outstanding.
  virtual uint16_t cid(Ticket ticket) const = 0;
  // Completions that are there now, without waiting.
  virtual std::vector<Completion> poll() = 0;
  // Rings for what is held, then waits for at least one completion by interrupt (or polling, as opened). Returns empty
  // when the deadline passes. Throws Error(gone) when the device is found to be lost and nothing is there.
  // A completion found in memory without its interrupt is returned after `interrupt_grace` and counted in the audit.
  virtual std::vector<Completion> wait(Deadline deadline) = 0;
  // Queue reset: outstanding commands end with Status::lost and are returned. Throws Error(timeout).
  virtual std::vector<Completion> reset(Deadline deadline) = 0;
  // Puts the command in the ring even if it is full and rings, to show what the device does. It takes the next ticket.
  // Needs Cap::raw_commands.
  virtual void overfill(const Command& command) = 0;
  virtual const QueueAudit& audit() const = 0;

  // For a thread that waits on several queues at once: `fd` is readable when completions may have come, -1 where
  // there is no such file. Silence on it is to be trusted for so long only; then look with poll().
  struct Signal {
    int fd = -1;
    std::chrono::nanoseconds trust = std::chrono::microseconds(20);
  };
  virtual Signal signal() const { return {}; }
  // Takes what is signalled, without waiting: before the poll() that looks for its reason.
  virtual void take_signal() {}
  // Reads a register, within 200 ms. Throws Error(gone) when the device is found to be lost.
  virtual void look_for_device() const {}
};

// Returns when one of the queues may have a completion, or after the budget. Rings for nothing that is held.
void wait_for_any(std::span<Queue* const> queues, std::chrono::nanoseconds budget);

// Runs one command to its end on an otherwise idle queue. Throws Error(timeout) naming the command and the budget,
// Error(gone).
Completion run(Queue& queue, const Command& command, std::chrono::nanoseconds budget = std::chrono::seconds(5));
// The same, and throws Error(status) unless it ended with Status::ok; Error(gone) for Status::lost.
Completion run_ok(Queue& queue, const Command& command, std::chrono::nanoseconds budget = std::chrono::seconds(5));

}  // namespace kz
