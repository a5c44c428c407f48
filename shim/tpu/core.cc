// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/core.h"

#include <fmt/format.h>

#include "shim/base/error.h"
#include "shim/tpu/admin.h"

namespace kz::tpu {

void CleanupBudget::run(const std::function<void(std::chrono::nanoseconds)>& work) noexcept {
  std::chrono::nanoseconds left = left_;
  if (left <= 0ns || !transport_.alive()) return;
  Deadline spent(left);
  try {
    work(left);
  } catch (...) {
    left_ = std::max(left - spent.elapsed(), 0ns);
  }
}

void QueueNumbers::limit(uint16_t queues) {
  std::lock_guard lock(mutex_);
  limit_ = queues;
}

uint16_t QueueNumbers::take() {
  std::lock_guard lock(mutex_);
  uint16_t id = 0;
  while (taken_.contains(id)) ++id;
  if (id >= limit_)
    throw Error({Errc::busy, "open", "a queue", fmt::format("all {} queue pairs are in use", limit_),
                 "close one first", 0});
  taken_.insert(id);
  return id;
}

void QueueNumbers::give_back(uint16_t id) {
  std::lock_guard lock(mutex_);
  taken_.erase(id);
}

Core::Core(std::unique_ptr<Transport> way)
    : transport(std::move(way)), vectors(*transport), cleanup(*transport) {}

Core::~Core() = default;

}  // namespace kz::tpu
