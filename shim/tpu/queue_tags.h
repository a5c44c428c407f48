// SPDX-License-Identifier: GPL-2.0-or-later
// What a queue tells the operations of its ring apart by.
#pragma once

#include <cstdint>

namespace kz::tpu {

inline constexpr uint64_t tag_doorbell = 1, tag_interrupt = 2, tag_cancel = 3;

}  // namespace kz::tpu
