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

// Ends the command that timed out, where the device answers at all.
void Admin::free_queue(const char* what, const std::string& target) {
  if (!stuck_) return;
  if (!core_->transport->glance(KZ_REG_QUEUE(number_) + KZ_Q_STATE, second_look))
    throw Error({Errc::timeout, what, target, "the device does not answer since an earlier command timed out",
                 "reset the device", 0});
  queue_->reset(Deadline(reset_budget));
  base_ = last_;
  stuck_ = false;
}

Completion Admin::run(const kz_cmd& command, const char* what, const std::string& target,
                      std::chrono::nanoseconds budget) {
  std::lock_guard lock(mutex_);
  free_queue(what, target);
  Deadline deadline(budget);
  last_ = queue_->submit({cmd::Raw{command}}, true);
  Completion done;
  do {
    if (contains(queue_->wait(Deadline(deadline.left())), last_, done)) return done;
  } while (!deadline.passed());
  stuck_ = true;
  std::string why = diagnose(last_);
  try {
    free_queue(what, target);
  } catch (const Error&) {
    // The next command tries again.
  }
  throw Error(
      {Errc::timeout, what, target,
       fmt::format("no completion after {} of {}; {}", to_string(deadline.elapsed()), to_string(budget), why),
       "", 0});
}

}  // namespace kz::tpu
