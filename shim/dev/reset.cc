// SPDX-License-Identifier: GPL-2.0-or-later
// Resets through the driver, and what to do after somebody else's.
#include <fmt/format.h>
#include <poll.h>

#include <future>
#include <thread>

#include "shim/base/error.h"
#include "shim/dev/buffer.h"
#include "shim/dev/call.h"
#include "shim/dev/capabilities.h"
#include "shim/dev/device.h"

namespace kz::dev {
namespace {

uint32_t number_of(ResetKind kind) {
  switch (kind) {
    case ResetKind::function:
      return KZ_RESET_KIND_FUNCTION;
    case ResetKind::device:
      return KZ_RESET_KIND_DEVICE;
    case ResetKind::firmware:
      return KZ_RESET_KIND_FIRMWARE;
  }
  return 0;
}

Cap cap_of(ResetKind kind) {
  return kind == ResetKind::function ? Cap::reset_function
         : kind == ResetKind::device ? Cap::reset_device
                                     : Cap::reset_firmware;
}

const char* state_name(uint32_t state) {
  constexpr const char* names[] = {"live", "resetting", "suspended", "dead", "gone"};
  return state < std::size(names) ? names[state] : "unknown";
}

void pause() { ::poll(nullptr, 0, 5); }

}  // namespace

// The call returns when the device is ready again or given up. It cannot be interrupted, so it has a thread
// of its own, which is left to itself when the deadline passes.
void DevDevice::run_reset(uint32_t kind, const std::string& target, const Deadline& deadline) {
  auto done = std::make_shared<std::promise<int>>();
  auto answer = done->get_future();
  std::thread([core = core_, done, kind] {
    kz_ioc_reset a{};
    a.kind = kind;
    done->set_value(call(core->fd(), KZ_IOC_RESET, a));
  }).detach();
  if (answer.wait_for(deadline.left()) != std::future_status::ready) {
    kz_info info{};
    core_->info(info);
    throw Error(
        {Errc::timeout, "reset", target,
         fmt::format("the driver has not finished after {} of {}, its state is '{}'",
                     to_string(deadline.elapsed()), to_string(deadline.budget()), state_name(info.state)),
         "see the kernel log", 0});
  }
  if (int rc = answer.get(); rc < 0) throw_call("reset", target, -rc);
}

void DevDevice::reset(ResetKind kind, Deadline deadline) {
  aperture_.reset();
  std::string target = fmt::format("{} of {}", to_string(kind), core_->node().path);
  if (auto why = caps_.why_not.find(cap_of(kind)); why != caps_.why_not.end())
    throw Error({Errc::unsupported, "reset", target, why->second, "use another reset", 0});
  run_reset(number_of(kind), target, deadline);
  core_->epoch();
}

// True: it is. False: the driver has given it up.
bool DevDevice::await_live(const Deadline& deadline) {
  for (;; pause()) {
    kz_info info{};
    int rc = core_->info(info);
    if (rc < 0 || info.state == KZ_STATE_DEAD || info.state == KZ_STATE_GONE) return false;
    if (info.state == KZ_STATE_LIVE || info.state == KZ_STATE_SUSPENDED) return true;  // a call wakes it
    if (deadline.passed())
      throw Error({Errc::timeout, "recover", core_->node().path,
                   fmt::format("its state is still '{}' after {} of {}", state_name(info.state),
                               to_string(deadline.elapsed()), to_string(deadline.budget())),
                   "see the kernel log", 0});
  }
}

// The function was removed and may be back, under this name or not at all. Registered memory moves along.
void DevDevice::reopen(const Deadline& deadline) {
  for (;; pause()) {
    try {
      core_->abandon();  // and its lock: the node may be the same
      Node node = open_node(core_->node().path, exclusive_);
      if (serial_text(node.info.serial) != identity_.serial && !identity_.serial.empty())
        throw Error({Errc::gone, "recover", node.path, "another device has its node now",
                     "kangzao ls shows nodes", 0});
      auto fresh = std::make_shared<Core>(std::move(node));
      auto buffers = core_->buffers();
      for (Buffer* buffer : buffers) buffer->move_to(fresh);
      core_ = fresh;
      root_->move_to(core_);
      for (Buffer* buffer : buffers) buffer->enroll_again();
      return;
    } catch (const Error& e) {
      bool may_come = e.code() == Errc::not_found || e.code() == Errc::gone;
      if (!may_come || deadline.passed()) throw;
    }
  }
}

void DevDevice::recover(Deadline deadline) {
  aperture_.reset();
  kz_info info{};
  if (core_->info(info) == -ENODEV) reopen(deadline);
  core_->let_go();
  core_->close_dead();
  if (await_live(deadline)) return;
  // The driver's own ladder begins at the function.
  run_reset(KZ_RESET_KIND_FUNCTION, core_->node().path, deadline);
  core_->epoch();
}

}  // namespace kz::dev
