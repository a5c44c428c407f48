// SPDX-License-Identifier: GPL-2.0-or-later
// Device memory of a context.
#pragma once

#include <memory>

#include "shim/tpu/context.h"

namespace kz::tpu {

// KZ_OP_HBM_ALLOC, _FREE and _QUERY.
kz_cmd hbm_command(uint8_t opcode, uint32_t context, HbmAddr addr, uint64_t len);

// Throws Error(no_memory), Error(status) for another refusal, Error(timeout).
std::unique_ptr<HbmBlock> allocate(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context,
                                   Bytes size);

}  // namespace kz::tpu
