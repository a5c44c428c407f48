// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/core.h"

#include <poll.h>

#include "shim/base/error.h"
#include "shim/base/fd.h"

namespace kz::tpu {

// Below this address lie the places where confusion shows late: 0, BARs, the
// interrupt window of x86.
static constexpr uint64_t first_iova = 0x1000'0000;
static constexpr uint64_t interrupt_window = 0xfee0'0000,
                          interrupt_window_size = 0x10'0000;

uint64_t VectorHub::drain(unsigned vector) {
  int fd = transport_.vector_fd(vector);
  pollfd p{fd, POLLIN, 0};
  if (::poll(&p, 1, 0) != 1)
    return 0;
  uint64_t n = drain_eventfd(fd);
  add(vector, n);
  return n;
}

std::vector<uint64_t> VectorHub::counts() {
  std::vector<uint64_t> out;
  for (unsigned v = 0; v < size(); ++v) {
    if (vectors_[v].users == 0)
      drain(v);
    out.push_back(vectors_[v].count);
  }
  return out;
}

Core::Core(std::unique_ptr<Transport> way, unsigned iova_bits)
    : transport(std::move(way)), vectors(*transport),
      iovas(first_iova, iova_bits >= 64 ? 0 : uint64_t{1} << iova_bits) {
  iovas.take_at({interrupt_window}, interrupt_window_size);
}

DmaMemory::DmaMemory(std::shared_ptr<Core> core, const DmaSpec &spec)
    : core_(std::move(core)), size_(spec.size.value) {
  if (size_ == 0)
    throw Error({Errc::usage, "map", "DMA buffer", "zero bytes", "", 0});
  Bytes whole{align_up(size_, 4096)};
  fd_ = make_memfd("kz-dma", whole);
  map_ = Mapping(fd_.get(), 0, whole, true, "DMA buffer");
  {
    std::lock_guard lock(core_->iova_mutex);
    mapping_.iova = (spec.at ? core_->iovas.take_at(*spec.at, whole.value)
                             : core_->iovas.take(whole.value))
                        .value;
  }
  mapping_.bytes = map_.bytes();
  mapping_.fd = fd_.get();
  mapping_.device_reads = spec.device_reads;
  mapping_.device_writes = spec.device_writes;
  mapping_.by_message = spec.by_message;
  try {
    core_->transport->dma_map(mapping_);
  } catch (...) {
    std::lock_guard lock(core_->iova_mutex);
    core_->iovas.give_back({mapping_.iova});
    throw;
  }
  mapped_ = true;
}

void DmaMemory::unmap() {
  if (!mapped_)
    return;
  core_->transport->dma_unmap(mapping_);
  mapped_ = false;
}

DmaMemory::~DmaMemory() {
  try {
    unmap();
  } catch (const Error &) {
    core_->wedged = true; // the map dies with the connection
  }
  std::lock_guard lock(core_->iova_mutex);
  core_->iovas.give_back({mapping_.iova});
}

} // namespace kz::tpu
