// SPDX-License-Identifier: GPL-2.0-or-later
// Interrupt counts of a device, one a vector, whoever takes them off the eventfd.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "shim/tpu/transport.h"

namespace kz::tpu {

// Thread-safe. A queue waits on its vector's eventfd and adds what it read; anybody may drain a vector
// without waiting. Whoever took it, a queue sees its interrupts in count().
class VectorHub {
 public:
  explicit VectorHub(Transport& transport) : transport_(transport), vectors_(transport.vectors()) {}
  unsigned size() const { return static_cast<unsigned>(vectors_.size()); }

  // A queue begins and ends to use the vector. True when it is the only one: only then can its books be
  // exact.
  bool join(unsigned vector);
  void leave(unsigned vector) { --vectors_.at(vector).users; }
  bool shared(unsigned vector) const { return vectors_.at(vector).users > 1; }
  // Changes whenever a vector that was in use got another user.
  uint64_t epoch(unsigned vector) const { return vectors_.at(vector).epoch; }

  void add(unsigned vector, uint64_t n) { vectors_.at(vector).count += n; }
  uint64_t count(unsigned vector) const { return vectors_.at(vector).count; }
  // Takes what is signalled, without waiting.
  void drain(unsigned vector);
  std::vector<uint64_t> counts();  // all, drained

 private:
  struct Vector {
    std::atomic<int> users{0};
    std::atomic<uint64_t> epoch{0};
    std::atomic<uint64_t> count{0};
  };
  Transport& transport_;
  std::vector<Vector> vectors_;
};

}  // namespace kz::tpu
