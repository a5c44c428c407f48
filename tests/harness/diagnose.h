// SPDX-License-Identifier: GPL-2.0-or-later
// After something went wrong: the further steps that tell one cause from another, and the evidence they give.
// Used by every test that compares data or waits for a command.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "shim/base/error.h"
#include "shim/device.h"
#include "tests/harness/difference.h"
#include "tests/harness/queue_guard.h"

namespace kz::test {

// "alive": the heartbeat moved within the budget; "stopped"; "unknown": the device has none or cannot be
// read.
std::string heartbeat_state(Device& device, std::chrono::nanoseconds budget = std::chrono::milliseconds(600));
// Whether a fresh queue of the privileged context completes a NOP: "complete" | "stuck" | "unknown".
std::string others_state(Device& device);
// The fatal code (KZ_RR_*) of the status register, if the firmware gave up.
std::optional<uint32_t> fatal_code(Device& device);

// ev::no_completion; and ev::spontaneous_reset where the device says that its firmware died.
void report_stall(Device& device, const Stall& stall);
// ev::queue.status, or ev::ecc where the status is poison and was not expected. Returns the text for the
// failure.
std::string report_status(const std::string& command, Status want, Status got);
// Looks at a device that did not answer and reports ev::lost: waits up to the budget for it to answer, and as
// long again for it to come up. True: it came up.
bool report_lost(Device& device, bool under_load, std::chrono::nanoseconds budget);
// The same for a device that was not there when it was to be opened: `open` tries again.
void report_absent(const Error& e, const std::function<Device&()>& open);

// Runs March C- with three backgrounds over the 8-byte words of [addr, addr + len). Destroys their content.
// "bad" | "good" | "unknown" (no MARCH, or it did not run).
std::string march_cells(QueueGuard& queue, HbmAddr addr, uint64_t len);

// One finished transfer, to be checked.
struct Transfer {
  std::string path;  // "host>hbm>host", "hbm>hbm", "sg", "aperture", ...
  std::span<const std::byte> want;
  std::span<const std::byte> got;     // where the data arrived: looked at again for late data
  std::span<const std::byte> before;  // what `got` held before, or empty
  // Each may be missing. reread: only the last hop again, into `got`. again: all of it again, into `got`.
  std::function<void()> reread, again;
  // The HBM that took part, for the march: an allocation that may be overwritten, and where in it the data
  // begins.
  QueueGuard* queue = nullptr;
  HbmAddr cells;
  uint64_t cells_len = 0;  // 0: none
  uint64_t cells_skip = 0;
  uint64_t chunk = uint64_t{1} << 20;
};
// Compares; on a difference finds the facts of ev::data_mismatch or ev::data_late, reports them and returns a
// sentence for the failure. Empty: all bytes are right.
std::string check_transfer(const Transfer& transfer);

// Checks bytes that nobody may have written: all must be `fill`. On a difference reports
// ev::guard_overwritten and returns a sentence.
std::string check_guard(std::span<const std::byte> guard, std::byte fill, const std::string& where,
                        const std::string& path);

}  // namespace kz::test
