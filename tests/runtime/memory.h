// SPDX-License-Identifier: GPL-2.0-or-later
// Free HBM: waiting for its count, and taking nearly all of it.
#pragma once

#include <memory>
#include <vector>

#include "shim/device.h"

namespace kz::test {

// Free bytes as telemetry says, as soon as they reach `want`, or what they are after 400 ms.
uint64_t settled_free(Device& device, uint64_t want);
// Allocates until exactly `pages` pages are free, or as near as the allocator lets it.
std::vector<std::unique_ptr<HbmBlock>> take_all_but(Device& device, Context& context, uint64_t pages);

}  // namespace kz::test
