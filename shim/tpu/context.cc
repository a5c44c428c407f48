// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/context.h"

#include <fmt/format.h>

#include "shim/base/error.h"
#include "shim/tpu/admin.h"
#include "shim/tpu/hbm.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {

Completion manage(Core& core, const kz_cmd& command, const char* what, const std::string& target,
                  std::optional<std::chrono::nanoseconds> budget) {
  if (core.admin == nullptr)
    throw Error({Errc::gone, what, target, "the device is not up (opened to look only, or a reset failed)",
                 "open it again, or reset it", 0});
  return core.admin->run(command, what, target, budget.value_or(Admin::default_budget));
}

TpuContext::TpuContext(std::shared_ptr<Core> core, uint32_t id)
    : core_(std::move(core)), state_(std::make_shared<ContextState>()) {
  state_->id = id;
  state_->generation = id == 0 ? 0 : core_->generation.load();
}

TpuContext::~TpuContext() {
  state_->open = false;
  if (id() == 0 || state_->generation != core_->generation) return;
  core_->cleanup.run([&](std::chrono::nanoseconds budget) {
    kz_cmd c{};
    c.opcode = KZ_OP_CTX_DESTROY;
    c.u.ctx.ctx = id();
    manage(*core_, c, "destroy", fmt::format("context {}", id()), budget);
  });
}

void TpuContext::check_alive(const char* what) const {
  if (state_->generation == 0 || state_->generation == core_->generation) return;
  throw Error({Errc::gone, what, fmt::format("context {}", id()),
               "the device was reset or given up since it was created", "create a new context", 0});
}

std::unique_ptr<Queue> TpuContext::open_queue(const QueueSpec& spec) {
  check_alive("open a queue in");
  if (core_->admin == nullptr)
    throw Error({Errc::gone, "open", "a queue",
                 "the device is not up (opened to look only, or a reset failed)",
                 "open it again, or reset it", 0});
  if (spec.order < 1 || spec.order > core_->max_order)
    throw Error({Errc::usage, "open", "a queue",
                 fmt::format("2^{} entries; the device takes 2^1 to 2^{}", spec.order, core_->max_order), "",
                 0});
  uint16_t number = core_->numbers.take();
  try {
    auto* numbers = &core_->numbers;  // lives as long as the queue's share of the core
    return std::make_unique<TpuQueue>(core_, number, id(), spec,
                                      [numbers](uint16_t q) { numbers->give_back(q); });
  } catch (...) {
    core_->numbers.give_back(number);
    throw;
  }
}

std::unique_ptr<HbmBlock> TpuContext::alloc(Bytes size) {
  check_alive("allocate HBM in");
  return allocate(core_, state_, size);
}

Status TpuContext::free_raw(HbmAddr addr) {
  check_alive("free HBM in");
  return manage(*core_, hbm_command(KZ_OP_HBM_FREE, id(), addr, 0), "free HBM at",
                fmt::format("{:#x}", addr.value))
      .status;
}

}  // namespace kz::tpu
