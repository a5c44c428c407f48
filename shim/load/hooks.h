// SPDX-License-Identifier: GPL-2.0-or-later
// What a caller of the engine may want to see as it happens, beside the books.
#pragma once

#include <functional>
#include <span>

#include "shim/device.h"
#include "shim/load/job.h"

namespace kz::load {

// A result that is not what it should be; the spans are valid during the call.
struct WrongResult {
  Op op = Op::nop;
  HbmAddr addr;
  std::span<const std::byte> want, got;
};

// Each may be empty. `wrong` is called in the thread of a worker, the others in the thread of run_process().
struct Hooks {
  std::function<bool()> stop;  // asked now and then; true: nothing more is sent
  std::function<void(const WrongResult&)> wrong;
  std::function<void(uint16_t queue, const QueueAudit&)> audit;  // of each queue, before it is closed
};

}  // namespace kz::load
