// SPDX-License-Identifier: GPL-2.0-or-later
// Host memory for the device: one memfd for all buffers, and who has which part of it and which bus address.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "shim/base/fd.h"
#include "shim/device.h"
#include "shim/tpu/iova.h"
#include "shim/tpu/transport.h"

namespace kz::tpu {

// A sparse memfd that grows. What is given back is emptied, so that memory goes back to the system and a new
// owner finds zeroes. Thread-safe.
class DmaPool {
 public:
  DmaPool();
  // Bus addresses have so many bits; before the first take().
  void limit(unsigned iova_bits);
  struct Part {
    uint64_t offset = 0, size = 0;  // in the memfd
    Iova iova;
  };
  // Whole pages. `at`: exactly that bus address. Throws Error(no_memory), Error(busy), Error(usage).
  Part take(uint64_t size, std::optional<Iova> at);
  void give_back(const Part& part);
  int fd() const { return fd_.get(); }
  uint64_t in_use() const;  // bytes

 private:
  uint64_t place(uint64_t size);

  mutable std::mutex mutex_;
  Fd fd_;
  uint64_t size_ = 0, used_ = 0;
  std::map<uint64_t, uint64_t> free_;  // offset -> size, never touching each other
  IovaAllocator iovas_;
};

struct Core;

// A buffer: a part of the pool, mapped here and for the device.
class DmaMemory final : public DmaBuffer {
 public:
  DmaMemory(std::shared_ptr<Core> core, const DmaSpec& spec);
  ~DmaMemory() override;
  DmaMemory(const DmaMemory&) = delete;
  std::span<std::byte> bytes() override { return map_.bytes().first(size_); }
  Iova iova() const override { return part_.iova; }
  void unmap() override;

 private:
  DmaMapping mapping() const;

  std::shared_ptr<Core> core_;
  size_t size_;
  DmaSpec spec_;
  DmaPool::Part part_;
  Mapping map_;
  bool mapped_ = false;
};

}  // namespace kz::tpu
