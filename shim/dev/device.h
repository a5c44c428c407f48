// SPDX-License-Identifier: GPL-2.0-or-later
// The reference TPU through its kernel driver: dev:/dev/kz0.
#pragma once

#include <memory>

#include "shim/dev/aperture.h"
#include "shim/dev/context.h"
#include "shim/dev/core.h"
#include "shim/device.h"

namespace kz::dev {

class DevDevice final : public Device {
 public:
  // `config`: of the PCI function behind the node, null where this host does not show it.
  DevDevice(std::shared_ptr<Core> core, bool exclusive, Identity identity, Capabilities caps,
            std::unique_ptr<ConfigSpace> config);
  ~DevDevice() override;

  const Identity& identity() const override { return identity_; }
  const Capabilities& capabilities() const override { return caps_; }
  ConfigSpace& config() override;
  Telemetry telemetry() override;
  uint32_t read_register(uint32_t offset) override;
  void write_register(uint32_t offset, uint32_t value) override;
  void wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) override;
  void reset(ResetKind kind, Deadline deadline) override;
  void recover(Deadline deadline) override;
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) override;
  std::unique_ptr<Context> create_context() override;
  Context& root_context() override { return *root_; }
  HbmAddr physical(const Context& context, HbmAddr addr) override;
  Aperture& aperture() override;
  std::vector<uint64_t> interrupt_counts() override;

 private:
  void run_reset(uint32_t kind, const std::string& target, const Deadline& deadline);
  bool await_live(const Deadline& deadline);
  void reopen(const Deadline& deadline);

  std::shared_ptr<Core> core_;
  bool exclusive_;
  Identity identity_;
  Capabilities caps_;
  std::unique_ptr<ConfigSpace> config_;
  std::unique_ptr<DevContext> root_;
  std::unique_ptr<DevAperture> aperture_;
};

// Throws as open_node() does, and Error(gone) where the driver could not bring the device up and `bring_up`
// is asked for.
std::unique_ptr<Device> open_dev(const Uri& uri, const OpenOptions& options);

}  // namespace kz::dev
