// SPDX-License-Identifier: GPL-2.0-or-later
// Reading device memory back for tests that conclude something else from it: first make sure that it is not
// the copies that are broken.
#pragma once

#include <span>
#include <string>

#include "tests/harness/host_area.h"
#include "tests/harness/queue_guard.h"

namespace kz::test {

// What a host buffer holds before it is read into: neither zero nor anybody's payload.
inline constexpr std::byte kNotRead{0xee};

// Copies `len` bytes from HBM to the area's start, which holds kNotRead before.
void read_into(QueueGuard& queue, HbmAddr from, HostArea& to, uint64_t len);
// Reads and compares; on a difference reports it as check_transfer() does and returns a sentence.
std::string read_and_check(QueueGuard& queue, HbmAddr from, HostArea& to, std::span<const std::byte> want);
// Round trips through fresh memory of the context, every byte checked. False: copies do not work, which is
// reported and fails the test; what they seem to show of anything else means nothing.
bool copies_arrive(Device& device, Context& context, QueueGuard& queue, uint64_t seed, int rounds = 12);

}  // namespace kz::test
