// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/context.h"

#include <fmt/format.h>

#include "shim/base/error.h"
#include "shim/dev/call.h"
#include "shim/dev/queue.h"

namespace kz::dev {
namespace {

// How the device ended a free; what it was not asked is thrown.
Status free_hbm(Core& core, uint32_t context, HbmAddr addr) {
  kz_ioc_hbm a{};
  a.ctx = context;
  a.addr = addr.value;
  int rc = call(core.fd(), KZ_IOC_HBM_FREE, a);
  if (rc == 0) return Status::ok;
  if (a.status != KZ_ST_OK) return static_cast<Status>(a.status);
  if (rc == -ESTALE || rc == -ENODEV) return Status::lost;
  throw_call("free HBM at", fmt::format("{:#x}", addr.value), -rc);
}

class Block final : public HbmBlock {
 public:
  Block(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context, const kz_ioc_hbm& a,
        uint64_t epoch)
      : core_(std::move(core)), context_(std::move(context)), addr_{a.addr}, size_(a.len), epoch_(epoch) {}
  ~Block() override {
    if (!held_ || dead()) return;
    try {
      free_hbm(*core_, context_->id, addr_);
    } catch (const Error&) {
      // It goes with its context, or with the file.
    }
  }
  Block(const Block&) = delete;

  HbmAddr addr() const override { return addr_; }
  uint64_t size() const override { return size_; }
  Status free() override {
    if (!held_)
      throw Error(
          {Errc::usage, "free HBM at", fmt::format("{:#x}", addr_.value), "it was freed before", "", 0});
    held_ = false;
    return dead() ? Status::lost : free_hbm(*core_, context_->id, addr_);
  }

 private:
  // A context takes its memory along when it goes, and its number may be in use again.
  bool dead() const { return epoch_ != core_->epoch() || !context_->open; }

  std::shared_ptr<Core> core_;
  std::shared_ptr<ContextState> context_;
  HbmAddr addr_;
  uint64_t size_;
  uint64_t epoch_;
  bool held_ = true;
};

}  // namespace

DevContext::DevContext(std::shared_ptr<Core> core, uint32_t id)
    : core_(std::move(core)), state_(std::make_shared<ContextState>()) {
  state_->id = id;
  state_->epoch = id == KZ_CTX_ROOT ? 0 : core_->epoch();
  if (id != KZ_CTX_ROOT) core_->add(state_);
}

DevContext::~DevContext() { core_->close(*state_); }

void DevContext::move_to(std::shared_ptr<Core> core) {
  core_->close(*state_);
  core_ = std::move(core);
  auto fresh = std::make_shared<ContextState>();
  fresh->id = id();
  state_ = fresh;
}

void DevContext::check_alive(const char* what) const {
  core_->check_there(what, fmt::format("context {} of {}", id(), core_->node().path));
  if (state_->epoch == 0 || state_->epoch == core_->epoch()) return;
  throw Error({Errc::gone, what, fmt::format("context {}", id()),
               "the device was reset or given up since it was created", "create a new context", 0});
}

std::unique_ptr<Queue> DevContext::open_queue(const QueueSpec& spec) {
  check_alive("open a queue in");
  return open_dev_queue(core_, state_, spec);
}

std::unique_ptr<HbmBlock> DevContext::alloc(Bytes size) {
  check_alive("allocate HBM in");
  uint64_t epoch = core_->epoch();
  kz_ioc_hbm a{};
  a.ctx = id();
  a.len = size.value;
  int rc = call(core_->fd(), KZ_IOC_HBM_ALLOC, a);
  if (rc < 0) throw_call("allocate", to_string(size) + " of HBM", -rc, a.status);
  return std::make_unique<Block>(core_, state_, a, epoch);
}

Status DevContext::free_raw(HbmAddr addr) {
  check_alive("free HBM in");
  return free_hbm(*core_, id(), addr);
}

std::unique_ptr<Context> create_context(const std::shared_ptr<Core>& core) {
  for (bool again = false;; again = true) {
    uint64_t epoch = core->epoch();
    kz_ioc_ctx c{};
    int rc = call(core->fd(), KZ_IOC_CTX_CREATE, c);
    if (rc == -EBUSY && c.status == KZ_ST_OK && !again) {
      core->close_dead();  // one from before a reset has the number, and its object still lives
      continue;
    }
    if (rc < 0) throw_call("create", "a context on " + core->node().path, -rc, c.status);
    auto context = std::make_unique<DevContext>(core, c.ctx);
    if (core->epoch() == epoch || again) return context;
    again = true;  // somebody's reset came between
  }
}

}  // namespace kz::dev
