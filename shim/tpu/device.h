// SPDX-License-Identifier: GPL-2.0-or-later
// The reference TPU as a Device, driven from user space through a Transport.
#pragma once

#include <memory>
#include <vector>

#include "shim/device.h"
#include "shim/tpu/core.h"

namespace kz::tpu {

class TpuDevice final : public Device {
 public:
  // Identifies the device and, unless told not to, brings it up. Throws Error(protocol) when it is not a
  // reference TPU, Error(unsupported) for another ABI, Error(gone), Error(timeout).
  TpuDevice(std::unique_ptr<Transport> transport, Identity identity, bool bring_up);
  // Stops the device and closes the way to it; objects that live on are dead.
  ~TpuDevice() override;

  const Identity& identity() const override { return identity_; }
  const Capabilities& capabilities() const override { return caps_; }
  ConfigSpace& config() override { return core_->transport->config(); }
  Telemetry telemetry() override;
  uint32_t read_register(uint32_t offset) override { return core_->transport->read32(offset); }
  void write_register(uint32_t offset, uint32_t value) override { core_->transport->write32(offset, value); }
  void wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) override;
  void reset(ResetKind kind, Deadline deadline) override;
  void recover(Deadline deadline) override;
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) override;
  std::unique_ptr<Context> create_context() override;
  Context& root_context() override { return *root_; }
  HbmAddr physical(const Context& context, HbmAddr addr) override;
  Aperture& aperture() override { return core_->transport->aperture(caps_.limits.hbm_bytes); }
  std::vector<uint64_t> interrupt_counts() override { return core_->vectors.counts(); }
  // Bytes of DMA memory in use, rings included.
  uint64_t dma_in_use() const { return core_->pool.in_use(); }

 private:
  void enable_memory();
  void save_config();
  void restore_config();
  void let_go();
  void await_config(const Deadline& deadline);
  void await_registers(const Deadline& deadline);
  void await_reset_count(uint32_t before, const Deadline& deadline);
  void bring_up(const Deadline& deadline);
  void require_function_reset();
  void function_reset(const Deadline& deadline);

  std::shared_ptr<Core> core_;
  Identity identity_;
  Capabilities caps_;
  std::vector<std::pair<uint32_t, uint32_t>> saved_config_;
  std::unique_ptr<Context> root_;
  bool memory_was_off_ = false;
};

// Telemetry of the block as read; understands all ones. Pure.
Telemetry decode_telemetry(std::span<const std::byte> block);

// What the device says it can do, from its registers. Throws as Transport does.
Capabilities read_capabilities(Transport& transport);

}  // namespace kz::tpu
