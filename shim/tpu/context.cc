// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/context.h"

#include <fmt/format.h>

#include "shim/base/error.h"

namespace kz::tpu {
namespace {

kz_cmd alloc_command(uint8_t opcode, uint32_t context, uint64_t addr,
                     uint64_t len) {
  kz_cmd c{};
  c.opcode = opcode;
  c.u.alloc.addr = addr;
  c.u.alloc.len = len;
  c.u.alloc.ctx = context;
  return c;
}

class Block final : public HbmBlock {
public:
  Block(TpuDevice &device, uint32_t context, HbmAddr addr, uint64_t size)
      : device_(device), context_(context), addr_(addr), size_(size),
        generation_(device.core()->generation) {}
  ~Block() override {
    try {
      if (!freed_ && generation_ == device_.core()->generation &&
          !device_.core()->wedged)
        free();
    } catch (const Error &) {
      device_.core()->wedged = true;
    }
  }
  HbmAddr addr() const override { return addr_; }
  uint64_t size() const override { return size_; }
  Status free() override {
    freed_ = true;
    if (generation_ != device_.core()->generation)
      return Status::lost;
    return device_
        .admin(alloc_command(KZ_OP_HBM_FREE, context_, addr_.value, 0),
               "free HBM")
        .status;
  }

private:
  TpuDevice &device_;
  uint32_t context_;
  HbmAddr addr_;
  uint64_t size_;
  uint64_t generation_;
  bool freed_ = false;
};

} // namespace

TpuContext::TpuContext(TpuDevice &device, uint32_t id)
    : device_(device), id_(id), generation_(device.core()->generation) {}

TpuContext::~TpuContext() {
  if (id_ == 0 || generation_ != device_.core()->generation ||
      device_.core()->wedged)
    return;
  try {
    kz_cmd c{};
    c.opcode = KZ_OP_CTX_DESTROY;
    c.u.ctx.ctx = id_;
    device_.admin(c, "destroy context");
  } catch (const Error &) {
    device_.core()->wedged = true;
  }
}

void TpuContext::check_alive(const char *what) const {
  if (id_ != 0 && generation_ != device_.core()->generation)
    throw Error({Errc::gone, what, fmt::format("context {}", id_),
                 "the device was reset since it was created",
                 "create a new context", 0});
}

std::unique_ptr<Queue> TpuContext::open_queue(const QueueSpec &spec) {
  check_alive("open a queue in");
  return device_.open_queue(id_, spec);
}

std::unique_ptr<HbmBlock> TpuContext::alloc(Bytes size) {
  check_alive("allocate HBM in");
  Completion done = device_.admin(
      alloc_command(KZ_OP_HBM_ALLOC, id_, 0, size.value), "allocate HBM");
  if (done.status == Status::ok)
    return std::make_unique<Block>(
        device_, id_, HbmAddr{done.result},
        align_up(size.value, device_.capabilities().limits.hbm_page));
  throw Error(
      {done.status == Status::no_memory ? Errc::no_memory : Errc::status,
       "allocate", kz::to_string(size) + " of HBM",
       std::string(to_string(done.status)), "", 0});
}

Status TpuContext::free_raw(HbmAddr addr) {
  check_alive("free HBM in");
  return device_
      .admin(alloc_command(KZ_OP_HBM_FREE, id_, addr.value, 0), "free HBM")
      .status;
}

} // namespace kz::tpu
