// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/admin.h"

#include <fmt/format.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

constexpr unsigned order = 4;
constexpr auto second_look = 100ms;  // after a repeated doorbell
constexpr auto reset_budget = 500ms;

bool contains(const std::vector<Completion>& done, Ticket ticket, Completion& out) {
  auto it = std::find_if(done.begin(), done.end(), [&](const Completion& c) { return c.ticket == ticket; });
  if (it == done.end()) return false;
  out = *it;
  return true;
}

}  // namespace

Admin::Admin(std::shared_ptr<Core> core, uint16_t queue)
    : core_(std::move(core)),
      number_(queue),
      queue_(std::make_unique<TpuQueue>(core_, queue, 0, QueueSpec{.order = order, .interrupts = false},
                                        nullptr)) {}

// Why did it not complete? A last look that tells a lost doorbell from a stuck engine.
std::string Admin::diagnose(Ticket ticket) {
  auto head = core_->transport->glance(KZ_REG_QUEUE(number_) + KZ_Q_SQ_HEAD, second_look);
  if (!head) return "its registers do not answer either";
  bool fetched = static_cast<int32_t>(*head - static_cast<uint32_t>(ticket - base_)) >= 0;
  queue_->ring();
  Completion late;
  bool came = false;
  for (Deadline deadline(second_look); !came && !deadline.passed();)
    came = contains(queue_->wait(Deadline(deadline.left())), ticket, late);
  return fmt::format("the device {} it, a second doorbell {}", fetched ? "fetched" : "did not fetch",
                     came ? "brought it" : "did not help");
}

Completion Admin::run(const kz_cmd& command, const char* what, const std::string& target,
                      std::chrono::nanoseconds budget) {
  std::lock_guard lock(mutex_);
  if (queue_ == nullptr)
    throw Error({Errc::gone, what, target, "the driver's own queue could not be reset after a timeout",
                 "reset the device", 0});
  Deadline deadline(budget);
  Ticket ticket = queue_->submit({cmd::Raw{command}}, true);
  Completion done;
  do {
    if (contains(queue_->wait(Deadline(deadline.left())), ticket, done)) return done;
  } while (!deadline.passed());
  std::string why = diagnose(ticket);
  try {
    queue_->reset(Deadline(reset_budget));
    base_ = ticket;
  } catch (const Error&) {
    queue_.reset();
  }
  throw Error(
      {Errc::timeout, what, target,
       fmt::format("no completion after {} of {}; {}", to_string(deadline.elapsed()), to_string(budget), why),
       "", 0});
}

}  // namespace kz::tpu
