// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include "shim/tpu/device.h"

namespace kz::tpu {

// A context of the device and what is allocated in it. The device must outlive
// it.
class TpuContext final : public Context {
public:
  TpuContext(TpuDevice &device, uint32_t id);
  ~TpuContext() override;
  uint32_t id() const override { return id_; }
  std::unique_ptr<Queue> open_queue(const QueueSpec &spec) override;
  std::unique_ptr<HbmBlock> alloc(Bytes size) override;
  Status free_raw(HbmAddr addr) override;

private:
  void check_alive(const char *what) const;

  TpuDevice &device_;
  uint32_t id_;
  uint64_t generation_;
};

} // namespace kz::tpu
