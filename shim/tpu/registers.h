// SPDX-License-Identifier: GPL-2.0-or-later
// Registers of the reference TPU by name, for errors and logs, and the one bounded wait on them.
#pragma once

#include <functional>
#include <string>

#include "shim/base/units.h"
#include "shim/tpu/transport.h"

namespace kz::tpu {

// "STATUS (0x0064)", "Q3.CTRL (0x10c0)", "TELEMETRY+0x10 (0x4010)", "register 0x0ff0"
std::string register_name(uint32_t offset);

// Waits for (value & mask) == want. Throws Error(timeout) "wait for STATUS (0x0064) of ...: read 0x2, want
// 0x1 in mask 0x1, after 500 ms of 500 ms", Error(gone) when the register reads all ones to the end.
void wait_register(const std::function<uint32_t()>& read, const std::string& device, uint32_t offset, uint32_t mask,
                   uint32_t want, Deadline deadline);
void wait_register(Transport& transport, uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline);

// Is it a reference TPU of an ABI that we know? Throws Error(gone) for all ones, Error(protocol),
// Error(unsupported).
void check_identity(Transport& transport);

}  // namespace kz::tpu
