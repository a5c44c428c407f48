// SPDX-License-Identifier: GPL-2.0-or-later
// Neutral work (shim/command.h) as the 64 bytes that the reference TPU takes
// (shim/uapi/kz_cmd.h).
#pragma once

#include "shim/command.h"

namespace kz::tpu {

// Phase bit and command id are left 0: the queue sets them. Throws Error(usage)
// for what the ABI cannot express (more than KZ_MARCH_OPS operations).
kz_cmd encode(const Command& command);

}  // namespace kz::tpu
