// SPDX-License-Identifier: GPL-2.0-or-later
// What the reference TPU's user-mode driver needs of the way to the device: registers, config space,
// aperture, interrupts, DMA map, reset. vfio-user implements it here; VFIO can implement it without a change
// above.
//
// Calls may come from any thread. Each ends in bounded time and throws Error(gone) when the device or its
// server is lost, Error(timeout) when it does not answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "shim/base/units.h"
#include "shim/config_space.h"
#include "shim/device.h"

namespace kz::tpu {

struct DmaMapping {
  uint64_t iova = 0;
  std::span<std::byte> bytes;  // our own view; whole pages
  int fd = -1;                 // the memory behind it
  uint64_t fd_offset = 0;      // of bytes[0]
  bool device_reads = true;
  bool device_writes = true;
  bool by_message = false;  // where the way has messages: not shared, every access is served by us
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const std::string& name() const = 0;  // for errors

  // BAR0. A lost device reads all ones or throws.
  virtual uint32_t read32(uint32_t offset) = 0;
  virtual void write32(uint32_t offset, uint32_t value) = 0;
  virtual void read_block(uint32_t offset, std::span<std::byte> out) = 0;
  // A register within a budget of its own, for callers that wait for something else. Nothing: no answer in
  // time.
  virtual std::optional<uint32_t> glance(uint32_t offset, std::chrono::nanoseconds budget) = 0;

  virtual ConfigSpace& config() = 0;
  // `hbm_bytes`: the size of HBM; the BAR may be larger.
  virtual Aperture& aperture(uint64_t hbm_bytes) = 0;

  // Eventfd that rings a queue's doorbell, or -1: write the register.
  virtual int doorbell_fd(unsigned queue) = 0;
  virtual unsigned vectors() const = 0;
  virtual int vector_fd(unsigned vector) = 0;  // blocking eventfd, one count an interrupt
  // Every interrupt is one count: none is merged on the way, so that books can be kept.
  virtual bool exact_interrupts() const = 0;
  // Points every vector at its eventfd and enables them; again after every reset that clears config space.
  virtual void arm_interrupts() = 0;

  virtual void dma_map(const DmaMapping& mapping) = 0;
  // `budget`: at most this long; 0: forget it on our side only. When it throws, the device may still reach
  // the memory.
  virtual void dma_unmap(const DmaMapping& mapping, std::optional<std::chrono::nanoseconds> budget = {}) = 0;

  virtual void device_reset(std::chrono::nanoseconds budget) = 0;
  virtual bool alive() const = 0;  // the way to the device is open
  virtual void close() = 0;        // gives the device up; what is called later throws Error(gone)
};

}  // namespace kz::tpu
