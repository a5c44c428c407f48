// SPDX-License-Identifier: GPL-2.0-or-later
// Host memory for transfers, with room on both sides that nobody may write.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "shim/device.h"

namespace kz::test {

class HostArea {
 public:
  static constexpr uint64_t kMargin = 16384;  // unused bytes before and after, at least
  static constexpr uint64_t kGuard = 4096;    // checked on each side of a window
  static constexpr std::byte kGuardByte{0x5a};

  // `spec.size` is the usable size; the margins come on top.
  HostArea(Device& device, DmaSpec spec);

  std::span<std::byte> bytes() { return buffer_->bytes().subspan(kMargin, size_); }
  std::span<std::byte> bytes(uint64_t offset, uint64_t len) { return bytes().subspan(offset, len); }
  Iova iova(uint64_t offset = 0) const { return buffer_->iova() + (kMargin + offset); }
  Place place(uint64_t offset = 0) const { return at(iova(offset)); }
  DmaBuffer& buffer() { return *buffer_; }

  // Fills the guard bytes around [offset, offset + len); those within the area too.
  void arm(uint64_t offset, uint64_t len);
  // Empty when they are as armed; else reported as ev::guard_overwritten, and a sentence.
  std::string check(uint64_t offset, uint64_t len, const std::string& path);

 private:
  uint64_t size_;
  std::shared_ptr<DmaBuffer> buffer_;
};

}  // namespace kz::test
