// SPDX-License-Identifier: GPL-2.0-or-later
// What the reference TPU's user-mode driver needs of the way to the device:
// registers, config space, aperture, interrupts, DMA map. vfio-user implements
// it here; VFIO can implement it without a change above.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shim/base/units.h"
#include "shim/config_space.h"
#include "shim/device.h"

namespace kz::tpu {

struct DmaMapping {
  uint64_t iova = 0;
  std::span<std::byte> bytes; // our own view
  int fd = -1;                // the memory behind it, from offset 0
  bool device_reads = true;
  bool device_writes = true;
  bool by_message = false;
};

class Transport {
public:
  virtual ~Transport() = default;
  virtual const std::string &name() const = 0;

  // BAR0. Throws Error(gone).
  virtual uint32_t read32(uint32_t offset) = 0;
  virtual void write32(uint32_t offset, uint32_t value) = 0;
  virtual void read_block(uint32_t offset, std::span<std::byte> out) = 0;

  virtual ConfigSpace &config() = 0;
  virtual Aperture &aperture() = 0;

  // Eventfd that rings a queue's doorbell, or -1: write the register.
  virtual int doorbell_fd(unsigned queue) = 0;
  virtual unsigned vectors() const = 0;
  virtual int vector_fd(unsigned vector) = 0; // eventfd, one count an interrupt
  // Every interrupt is one count: none is merged on the way, so that books can
  // be kept.
  virtual bool exact_interrupts() const = 0;
  // Points every vector at its eventfd and enables them; again after every
  // reset that clears config space.
  virtual void arm_interrupts() = 0;

  virtual void dma_map(const DmaMapping &mapping) = 0;
  virtual void dma_unmap(const DmaMapping &mapping) = 0;

  virtual void device_reset(std::chrono::nanoseconds timeout) = 0;
  virtual bool alive() const = 0;
};

} // namespace kz::tpu
