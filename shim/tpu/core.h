// SPDX-License-Identifier: GPL-2.0-or-later
// What the objects of one open reference TPU share: the way to the device, who
// owns which vector and IOVA, and whether the device was reset since an object
// was made.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/tpu/iova.h"
#include "shim/tpu/transport.h"

namespace kz::tpu {

// Interrupt counts. A vector is read by the queue that uses it, or by the hub
// when nobody does.
class VectorHub {
public:
  explicit VectorHub(Transport &transport)
      : transport_(transport), vectors_(transport.vectors()) {}
  unsigned size() const { return static_cast<unsigned>(vectors_.size()); }
  // How many queues use the vector, after joining or leaving. Only a vector
  // with one user keeps exact books.
  void join(unsigned vector) { ++vectors_.at(vector).users; }
  void leave(unsigned vector) { --vectors_.at(vector).users; }
  bool shared(unsigned vector) const { return vectors_.at(vector).users > 1; }
  void add(unsigned vector, uint64_t count) {
    vectors_.at(vector).count += count;
  }
  // Takes what is signalled, without waiting.
  uint64_t drain(unsigned vector);
  std::vector<uint64_t> counts();

private:
  struct Vector {
    std::atomic<int> users{0};
    std::atomic<uint64_t> count{0};
  };
  Transport &transport_;
  std::vector<Vector> vectors_;
};

struct Core {
  Core(std::unique_ptr<Transport> way, unsigned iova_bits);

  std::unique_ptr<Transport> transport;
  VectorHub vectors;
  std::mutex iova_mutex;
  IovaAllocator iovas;
  std::atomic<uint64_t> generation{
      1}; // counts resets: objects of an older one are dead
  std::atomic<bool> wedged{
      false}; // the device stopped answering: destructors leave it alone
};

// Host memory mapped for the device. Shared by buffers and rings.
class DmaMemory final : public DmaBuffer {
public:
  DmaMemory(std::shared_ptr<Core> core, const DmaSpec &spec);
  ~DmaMemory() override;
  std::span<std::byte> bytes() override { return map_.bytes().first(size_); }
  Iova iova() const override { return {mapping_.iova}; }
  void unmap() override;

private:
  std::shared_ptr<Core> core_;
  size_t size_;
  Fd fd_;
  Mapping map_;
  DmaMapping mapping_;
  bool mapped_ = false;
};

} // namespace kz::tpu
