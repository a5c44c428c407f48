// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/runtime/memory.h"

#include <thread>

#include "shim/base/error.h"
#include "shim/base/host_load.h"

namespace kz::test {

uint64_t settled_free(Device& device, uint64_t want) {
  uint64_t now = device.telemetry().hbm_free.value_or(0);
  seen_within(400ms, [&] { return (now = device.telemetry().hbm_free.value_or(0)) >= want; });
  return now;
}

std::vector<std::unique_ptr<HbmBlock>> take_all_but(Device& device, Context& context, uint64_t pages) {
  const uint64_t page = device.capabilities().limits.hbm_page;
  std::vector<std::unique_ptr<HbmBlock>> taken;
  uint64_t left = device.telemetry().hbm_free.value_or(0) / page;
  for (uint64_t piece = left > pages ? left - pages : 0; piece > 0 && left > pages;) {
    piece = std::min(piece, left - pages);
    try {
      taken.push_back(context.alloc({piece * page}));
      left -= piece;
    } catch (const Error& e) {
      if (e.code() != Errc::no_memory) throw;
      piece /= 2;  // there is room, but not in one run
    }
  }
  return taken;
}

}  // namespace kz::test
