// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <memory>

#include "shim/dev/core.h"

namespace kz::dev {

class DevContext final : public Context {
 public:
  // Of a context that exists in the driver, KZ_CTX_ROOT the privileged one.
  DevContext(std::shared_ptr<Core> core, uint32_t id);
  ~DevContext() override;
  DevContext(const DevContext&) = delete;
  uint32_t id() const override { return state_->id; }
  std::unique_ptr<Queue> open_queue(const QueueSpec& spec) override;
  std::unique_ptr<HbmBlock> alloc(Bytes size) override;
  Status free_raw(HbmAddr addr) override;
  // Becomes the same context of another open file, with nothing in it.
  void move_to(std::shared_ptr<Core> core);

 private:
  void check_alive(const char* what) const;

  std::shared_ptr<Core> core_;
  std::shared_ptr<ContextState> state_;
};

// Throws Error(no_memory) when the device has no more.
std::unique_ptr<Context> create_context(const std::shared_ptr<Core>& core);

}  // namespace kz::dev
