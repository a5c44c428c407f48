// SPDX-License-Identifier: GPL-2.0-or-later
// Host memory registered with the driver: pinned, charged to RLIMIT_MEMLOCK, reached by the device through
// KZ_HOST_ADDR(handle, offset). It survives resets.
#pragma once

#include <memory>

#include "shim/dev/core.h"

namespace kz::dev {

class Buffer final : public DmaBuffer {
 public:
  // Throws Error(usage), Error(permission) where RLIMIT_MEMLOCK is too low, Error(no_memory),
  // Error(unsupported) for an address of one's own choice.
  Buffer(std::shared_ptr<Core> core, const DmaSpec& spec);
  ~Buffer() override;
  Buffer(const Buffer&) = delete;
  std::span<std::byte> bytes() override { return {memory_, size_}; }
  Iova iova() const override { return {base_}; }
  void unmap() override;
  // Leaves its open file, which has lost everything, for another one; and is registered there, at another
  // address.
  void move_to(std::shared_ptr<Core> core) noexcept;
  void enroll_again();

 private:
  void enroll();
  bool withdraw(std::chrono::nanoseconds patience);

  std::shared_ptr<Core> core_;
  std::byte* memory_ = nullptr;
  size_t size_, mapped_;
  uint32_t flags_;
  uint32_t handle_ = 0;  // 0: not registered
  uint64_t base_ = 0;
  bool wanted_ = true;  // until unmap()
};

}  // namespace kz::dev
