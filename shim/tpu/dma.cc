// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/dma.h"

#include <fcntl.h>
#include <unistd.h>

#include "shim/base/error.h"
#include "shim/tpu/core.h"

namespace kz::tpu {
namespace {

constexpr uint64_t page = 4096;
// Below this address lie the places where confusion shows late: 0, and what a driver takes for small numbers.
constexpr uint64_t first_iova = 0x1000'0000;
// The interrupt window of x86: writes there are no memory writes.
constexpr Iova interrupt_window{0xfee0'0000};
constexpr uint64_t interrupt_window_size = 0x10'0000;
constexpr uint64_t largest_buffer = uint64_t{1} << 40;

}  // namespace

DmaPool::DmaPool() : fd_(make_memfd("kz-dma", Bytes{0})), iovas_(first_iova, 0, page) {}

void DmaPool::limit(unsigned iova_bits) {
  std::lock_guard lock(mutex_);
  bool whole = iova_bits == 0 || iova_bits >= 64;
  iovas_ = IovaAllocator(first_iova, whole ? 0 : uint64_t{1} << iova_bits, page);
  if (whole || iova_bits >= 32) iovas_.take_at(interrupt_window, interrupt_window_size);
}

// First fit in what is free, else at the end of the file.
uint64_t DmaPool::place(uint64_t size) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    auto [offset, room] = *it;
    if (room < size) continue;
    free_.erase(it);
    if (room > size) free_.emplace(offset + size, room - size);
    return offset;
  }
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_ + size)) != 0) throw_errno("grow", "DMA memory");
  uint64_t offset = size_;
  size_ += size;
  return offset;
}

DmaPool::Part DmaPool::take(uint64_t size, std::optional<Iova> at) {
  std::lock_guard lock(mutex_);
  Part part{0, align_up(size, page), {}};
  part.iova = at ? iovas_.take_at(*at, part.size) : iovas_.take(part.size);
  try {
    part.offset = place(part.size);
  } catch (...) {
    iovas_.give_back(part.iova);
    throw;
  }
  used_ += part.size;
  return part;
}

void DmaPool::give_back(const Part& part) {
  std::lock_guard lock(mutex_);
  iovas_.give_back(part.iova);
  used_ -= part.size;
  int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  // Not emptied: not to be given to anybody who expects zeroes.
  if (::fallocate(fd_.get(), how, static_cast<off_t>(part.offset), static_cast<off_t>(part.size)) != 0)
    return;
  auto [it, fresh] = free_.emplace(part.offset, part.size);
  if (auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  auto before = std::prev(it);
  if (before->first + before->second != it->first) return;
  before->second += it->second;
  free_.erase(it);
}

uint64_t DmaPool::in_use() const {
  std::lock_guard lock(mutex_);
  return used_;
}

DmaMemory::DmaMemory(std::shared_ptr<Core> core, const DmaSpec& spec)
    : core_(std::move(core)), size_(spec.size.value), spec_(spec) {
  if (size_ == 0 || size_ > largest_buffer)
    throw Error({Errc::usage, "make", "DMA buffer", "of " + to_string(spec.size), "", 0});
  part_ = core_->pool.take(size_, spec.at);
  try {
    map_ = Mapping(core_->pool.fd(), part_.offset, Bytes{part_.size}, true, "DMA buffer");
    core_->transport->dma_map(mapping());
  } catch (const Error& e) {
    // Without an answer the device may have it mapped: nobody else may get this memory or address.
    if (e.code() != Errc::timeout) core_->pool.give_back(part_);
    throw;
  } catch (...) {
    core_->pool.give_back(part_);
    throw;
  }
  mapped_ = true;
}

DmaMapping DmaMemory::mapping() const {
  return {part_.iova.value,   map_.bytes(),        core_->pool.fd(), part_.offset,
          spec_.device_reads, spec_.device_writes, spec_.by_message};
}

void DmaMemory::unmap() {
  if (!mapped_) return;
  core_->transport->dma_unmap(mapping());
  mapped_ = false;
}

DmaMemory::~DmaMemory() {
  if (mapped_)
    core_->cleanup.run([&](std::chrono::nanoseconds budget) {
      core_->transport->dma_unmap(mapping(), budget);
      mapped_ = false;
    });
  if (mapped_) {
    // The device may still reach it: nobody else gets this memory or this address.
    core_->transport->dma_unmap(mapping(), 0ns);
    return;
  }
  map_ = {};
  core_->pool.give_back(part_);
}

}  // namespace kz::tpu
