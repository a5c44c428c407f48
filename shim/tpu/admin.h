// SPDX-License-Identifier: GPL-2.0-or-later
// Contexts and HBM are managed by commands on a queue of the privileged context that the driver keeps for
// itself.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "shim/tpu/core.h"
#include "shim/tpu/queue.h"

namespace kz::tpu {

// Thread-safe. The queue is polled: a lost interrupt must not slow the management of the device down.
class Admin {
 public:
  // Longer than the watchdog's default (2 s), so that the device's own timeout is seen first.
  static constexpr std::chrono::nanoseconds default_budget = std::chrono::seconds(3);

  Admin(std::shared_ptr<Core> core, uint16_t queue);
  // One command to its end, with whatever status. Throws Error(timeout) "WHAT TARGET: no completion after
  // ...; fetched or not; whether a second doorbell helped", Error(gone). After a timeout the queue is reset
  // and can be used again.
  Completion run(const kz_cmd& command, const char* what, const std::string& target,
                 std::chrono::nanoseconds budget = default_budget);

 private:
  std::string diagnose(Ticket ticket);
  void free_queue(const char* what, const std::string& target);

  std::shared_ptr<Core> core_;
  uint16_t number_;
  std::mutex mutex_;
  std::unique_ptr<TpuQueue> queue_;
  bool stuck_ = false;          // a command is outstanding that timed out
  Ticket last_ = 0, base_ = 0;  // tickets: the latest, and the last one before the latest queue reset
};

}  // namespace kz::tpu
