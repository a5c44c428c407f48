// SPDX-License-Identifier: GPL-2.0-or-later
// A Device together with what must outlive it: the process that serves it.
#pragma once

#include <memory>

#include "shim/device.h"
#include "shim/softtpu_process.h"

namespace kz {

class OwnedDevice final : public Device {
 public:
  OwnedDevice(std::unique_ptr<Device> device, std::shared_ptr<SoftTpuProcess> process)
      : process_(std::move(process)), d_(std::move(device)) {}

  const Identity& identity() const override { return d_->identity(); }
  const Capabilities& capabilities() const override { return d_->capabilities(); }
  ConfigSpace& config() override { return d_->config(); }
  Telemetry telemetry() override { return d_->telemetry(); }
  uint32_t read_register(uint32_t offset) override { return d_->read_register(offset); }
  void write_register(uint32_t offset, uint32_t value) override { d_->write_register(offset, value); }
  void wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) override {
    d_->wait_register(offset, mask, want, deadline);
  }
  void reset(ResetKind kind, Deadline deadline) override { d_->reset(kind, deadline); }
  void recover(Deadline deadline) override { d_->recover(deadline); }
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) override { return d_->dma_buffer(spec); }
  std::unique_ptr<Context> create_context() override { return d_->create_context(); }
  Context& root_context() override { return d_->root_context(); }
  HbmAddr physical(const Context& context, HbmAddr addr) override { return d_->physical(context, addr); }
  Aperture& aperture() override { return d_->aperture(); }
  std::vector<uint64_t> interrupt_counts() override { return d_->interrupt_counts(); }

 private:
  std::shared_ptr<SoftTpuProcess> process_;  // first: ends after the device
  std::unique_ptr<Device> d_;
};

}  // namespace kz
