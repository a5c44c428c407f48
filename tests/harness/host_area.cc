// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/host_area.h"

#include <algorithm>

#include "tests/harness/diagnose.h"

namespace kz::test {
namespace {

DmaSpec with_margins(DmaSpec spec) {
  spec.size.value = align_up(spec.size.value, 4096) + 2 * HostArea::kMargin;
  return spec;
}

}  // namespace

HostArea::HostArea(Device& device, DmaSpec spec)
    : size_(spec.size.value), buffer_(device.dma_buffer(with_margins(spec))) {}

void HostArea::arm(uint64_t offset, uint64_t len) {
  auto all = buffer_->bytes();
  std::ranges::fill(all.subspan(kMargin + offset - kGuard, kGuard), kGuardByte);
  std::ranges::fill(all.subspan(kMargin + offset + len, kGuard), kGuardByte);
}

std::string HostArea::check(uint64_t offset, uint64_t len, const std::string& path) {
  auto all = buffer_->bytes();
  std::string before =
      check_guard(all.subspan(kMargin + offset - kGuard, kGuard), kGuardByte, "before", path);
  std::string after = check_guard(all.subspan(kMargin + offset + len, kGuard), kGuardByte, "after", path);
  return before.empty() ? after : after.empty() ? before : before + "; " + after;
}

}  // namespace kz::test
