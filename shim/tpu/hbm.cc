// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/hbm.h"

#include <fmt/format.h>

#include "shim/base/error.h"
#include "shim/status_error.h"

namespace kz::tpu {

kz_cmd hbm_command(uint8_t opcode, uint32_t context, HbmAddr addr, uint64_t len) {
  kz_cmd c{};
  c.opcode = opcode;
  c.u.alloc.addr = addr.value;
  c.u.alloc.len = len;
  c.u.alloc.ctx = context;
  return c;
}

namespace {

class Block final : public HbmBlock {
 public:
  Block(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context, HbmAddr addr, uint64_t size)
      : core_(std::move(core)),
        context_(std::move(context)),
        addr_(addr),
        size_(size),
        generation_(core_->generation) {}
  ~Block() override {
    if (held_ && !dead()) core_->cleanup.run([&](std::chrono::nanoseconds budget) { give_back(budget); });
  }
  Block(const Block&) = delete;

  HbmAddr addr() const override { return addr_; }
  uint64_t size() const override { return size_; }
  Status free() override {
    if (!held_)
      throw Error(
          {Errc::usage, "free HBM at", fmt::format("{:#x}", addr_.value), "it was freed before", "", 0});
    held_ = false;
    return dead() ? Status::lost : give_back({});
  }

 private:
  // A context takes its memory along when it goes, and its number may be in use again.
  bool dead() const { return generation_ != core_->generation || !context_->open; }
  Status give_back(std::optional<std::chrono::nanoseconds> budget) {
    auto command = hbm_command(KZ_OP_HBM_FREE, context_->id, addr_, 0);
    return manage(*core_, command, "free HBM at", fmt::format("{:#x}", addr_.value), budget).status;
  }

  std::shared_ptr<Core> core_;
  std::shared_ptr<ContextState> context_;
  HbmAddr addr_;
  uint64_t size_;
  uint64_t generation_;
  bool held_ = true;
};

}  // namespace

std::unique_ptr<HbmBlock> allocate(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context,
                                   Bytes size) {
  std::string what = to_string(size) + " of HBM";
  Completion done =
      manage(*core, hbm_command(KZ_OP_HBM_ALLOC, context->id, {}, size.value), "allocate", what);
  if (done.status == Status::ok) {
    uint64_t whole = align_up(size.value, core->hbm_page);
    return std::make_unique<Block>(std::move(core), std::move(context), HbmAddr{done.result}, whole);
  }
  bool full = done.status == Status::no_memory;
  throw StatusError(done.status, {full ? Errc::no_memory : Errc::status, "allocate", what,
                                  fmt::format("the device ended it with {}", to_string(done.status)), "", 0});
}

}  // namespace kz::tpu
