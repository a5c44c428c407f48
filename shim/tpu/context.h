// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <atomic>
#include <memory>

#include "shim/device.h"
#include "shim/tpu/core.h"

namespace kz::tpu {

// What a context's queues and blocks know of it: they may outlive it.
struct ContextState {
  uint32_t id = 0;
  uint64_t generation = 0;  // of the device; 0: the privileged context, which outlives resets
  std::atomic<bool> open{true};
};

class TpuContext final : public Context {
 public:
  // Of a context that exists on the device; 0 is the privileged one.
  TpuContext(std::shared_ptr<Core> core, uint32_t id);
  ~TpuContext() override;
  TpuContext(const TpuContext&) = delete;
  uint32_t id() const override { return state_->id; }
  std::unique_ptr<Queue> open_queue(const QueueSpec& spec) override;
  std::unique_ptr<HbmBlock> alloc(Bytes size) override;
  Status free_raw(HbmAddr addr) override;

 private:
  void check_alive(const char* what) const;

  std::shared_ptr<Core> core_;
  std::shared_ptr<ContextState> state_;
};

// One command on the driver's own queue. Throws Error(gone) where the device was not brought up.
Completion manage(Core& core, const kz_cmd& command, const char* what, const std::string& target,
                  std::optional<std::chrono::nanoseconds> budget = {});

}  // namespace kz::tpu
