// SPDX-License-Identifier: GPL-2.0-or-later
// What the objects of one open reference TPU share: the way to the device, its vectors, memory and queue
// numbers, and whether the device was reset since an object was made. It lives as long as the last of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "shim/tpu/dma.h"
#include "shim/tpu/transport.h"
#include "shim/tpu/vectors.h"

namespace kz::tpu {

class Admin;

// Time that destructors may spend on a device that does not answer, all together.
class CleanupBudget {
 public:
  explicit CleanupBudget(Transport& transport) : transport_(transport) {}
  // Runs `work` with what is left, unless that is nothing or the way to the device is closed. A failure is
  // swallowed and its time charged.
  void run(const std::function<void(std::chrono::nanoseconds)>& work) noexcept;
  void refill() { left_ = total; }

 private:
  static constexpr std::chrono::nanoseconds total = std::chrono::milliseconds(1500);
  Transport& transport_;
  std::atomic<std::chrono::nanoseconds> left_{total};
};

// Queue numbers, lowest first. Thread-safe.
class QueueNumbers {
 public:
  void limit(uint16_t queues);  // numbers 0 .. queues - 1
  uint16_t take();              // throws Error(busy)
  void give_back(uint16_t id);

 private:
  std::mutex mutex_;
  uint16_t limit_ = 0;
  std::set<uint16_t> taken_;
};

struct Core {
  explicit Core(std::unique_ptr<Transport> way);
  ~Core();
  Core(const Core&) = delete;

  std::unique_ptr<Transport> transport;
  VectorHub vectors;
  DmaPool pool;
  CleanupBudget cleanup;
  QueueNumbers numbers;
  uint64_t hbm_page = 65536;
  unsigned max_order = 0;  // log2 of the largest ring
  // Counts resets: what belongs to an older generation is dead and touches nothing on the device.
  std::atomic<uint64_t> generation{1};
  std::unique_ptr<Admin> admin;
};

}  // namespace kz::tpu
