// SPDX-License-Identifier: GPL-2.0-or-later
// The reference TPU as a Device, driven from user space through a Transport.
#pragma once

#include <set>

#include "shim/device.h"
#include "shim/tpu/core.h"
#include "shim/tpu/queue.h"

namespace kz::tpu {

class TpuDevice final : public Device {
public:
  // Identifies the device and, unless told not to, brings it up. Throws
  // Error(protocol) when it is not a reference TPU or has another ABI,
  // Error(gone), Error(timeout).
  TpuDevice(std::unique_ptr<Transport> transport, Identity identity,
            bool bring_up);
  ~TpuDevice() override;

  const Identity &identity() const override { return identity_; }
  const Capabilities &capabilities() const override { return caps_; }
  ConfigSpace &config() override { return core_->transport->config(); }
  Telemetry telemetry() override;
  uint32_t read_register(uint32_t offset) override {
    return core_->transport->read32(offset);
  }
  void write_register(uint32_t offset, uint32_t value) override {
    core_->transport->write32(offset, value);
  }
  void wait_register(uint32_t offset, uint32_t mask, uint32_t want,
                     Deadline deadline) override;
  void reset(ResetKind kind, Deadline deadline) override;
  void recover(Deadline deadline) override;
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec &spec) override;
  std::unique_ptr<Context> create_context() override;
  Context &root_context() override { return *root_; }
  HbmAddr physical(const Context &context, HbmAddr addr) override;
  Aperture &aperture() override { return core_->transport->aperture(); }
  std::vector<uint64_t> interrupt_counts() override {
    return core_->vectors.counts();
  }

  // For contexts and blocks: one command on the admin queue. Throws
  // Error(timeout) and stops trusting the device.
  Completion admin(const kz_cmd &command, const char *what);
  std::unique_ptr<Queue> open_queue(uint32_t context, const QueueSpec &spec);
  const std::shared_ptr<Core> &core() const { return core_; }

private:
  void read_limits();
  void save_config();
  void restore_config();
  void bring_up(Deadline deadline);
  void function_reset(Deadline deadline);

  std::shared_ptr<Core> core_;
  Identity identity_;
  Capabilities caps_;
  std::vector<std::pair<uint32_t, uint32_t>> saved_config_;
  std::mutex queue_mutex_;
  std::set<uint16_t> queues_in_use_;
  std::unique_ptr<TpuQueue> admin_;
  std::unique_ptr<Context> root_;
};

// Telemetry of the block as read; understands all ones. Pure.
Telemetry decode_telemetry(std::span<const std::byte> block);

} // namespace kz::tpu
