// SPDX-License-Identifier: GPL-2.0-or-later
// Waiting for completions, by interrupt or by polling, and the books of interrupts.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/tpu/queue.h"
#include "shim/tpu/queue_tags.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

// A completion in memory whose interrupt has not come within this time has lost it. A software device may
// have been put aside between the two, so only time counts in which the host had processors to spare; asking
// for that is dear, and most interrupts are a few microseconds late.
constexpr auto interrupt_grace = 100ms;
constexpr auto never_asked_for = 5ms;
// Between two looks at it.
constexpr auto look_owed = 10ms;
// How long to trust the interrupt before looking at memory: alone on the vector; beside others, who may take
// it; with quiet commands outstanding, which raise none.
constexpr auto look_alone = 10ms;
constexpr auto look_shared = 1ms;
constexpr auto look_quiet = 200us;
// A wait this long without result is worth a look at the device.
constexpr auto worth_a_look = 50ms;
constexpr auto look_every = 250ms;
constexpr unsigned yields = 64;  // of a polling wait, before it begins to sleep

void nap(std::chrono::nanoseconds t) {
  timespec ts{0, static_cast<long>(std::clamp<int64_t>(t.count(), 1000, 999'999'999))};
  ::ppoll(nullptr, 0, &ts, nullptr);
}

}  // namespace

std::vector<Completion> TpuQueue::poll() {
  if (dead()) return drop_all();
  std::vector<Completion> out;
  consume(out);
  if (out.empty()) check_usable("poll");
  return out;
}

std::vector<Completion> TpuQueue::wait(Deadline deadline) {
  if (dead() && outstanding_ > 0) return drop_all();
  if (dead()) check_usable("wait on");
  std::vector<Completion> out;
  struct Disarm {
    TpuQueue& q;
    ~Disarm() { q.disarm(); }
  } disarm_at_end{*this};
  auto next_look = look_every;
  const uint64_t irqs_before = interrupts();
  for (unsigned round = 0;; ++round) {
    consume(out);
    // With more to come, the interrupts that are still owed are left to the next wait.
    bool flowing = outstanding_ > 0 && interrupts() != irqs_before;
    if (flowing && !out.empty()) {
      ::sched_yield();  // a device that shares our processor gets on with the rest
      consume(out);
    }
    if (!out.empty() && (!exact() || flowing || settle())) break;
    if (out.empty()) check_usable("wait on");
    if (deadline.passed()) break;
    if (spec_.interrupts)
      sleep_on_vector(deadline, !out.empty());
    else
      sleep_polling(round, deadline);
    if (out.empty() && deadline.elapsed() >= next_look) {
      next_look = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.elapsed()) + look_every;
      look_for_device();
    }
  }
  if (held_) ring();
  if (out.empty()) {
    note_excess();
    look_out_of_turn();
    if (deadline.budget() >= worth_a_look) look_for_device();
  }
  return out;
}

void TpuQueue::sleep_polling(unsigned round, const Deadline& deadline) {
  if (held_) ring();
  if (round < yields)
    ::sched_yield();
  else
    nap(std::min<std::chrono::nanoseconds>(deadline.left(), std::min(round * 1us, 100us)));
}

std::chrono::nanoseconds TpuQueue::slice(bool have_some) const {
  if (have_some) return look_owed;  // waits for an interrupt only: memory has been looked at
  if (quiet_outstanding_ > 0) return look_quiet;
  return exact() ? look_alone : std::chrono::nanoseconds(look_shared);
}

// One system call: rings for what is held, waits for the vector.
void TpuQueue::sleep_on_vector(const Deadline& deadline, bool have_some) {
  if (held_ && doorbell_ >= 0) {
    ring_.write_eventfd(doorbell_, tag_doorbell);
    held_ = false;
  } else if (held_) {
    ring();
  }
  Deadline until(std::min(deadline.left(), slice(have_some)));
  if (unreadable_) {
    ring_.submit();
    pollfd p{core_->transport->vector_fd(vector_), POLLIN, 0};
    timespec ts{0, static_cast<long>(std::min<int64_t>(until.left().count(), 999'999'999))};
    ::ppoll(&p, 1, &ts, nullptr);
    core_->vectors.drain(vector_);
    return;
  }
  if (!armed_) {
    ring_.read_eventfd(core_->transport->vector_fd(vector_), &irq_count_, tag_interrupt);
    armed_ = true;
  }
  do process(ring_.wait(until));
  while (armed_ && !until.passed() && core_->transport->alive());
}

void TpuQueue::process(std::span<const Ring::Done> results) {
  for (const Ring::Done& done : results) {
    if (done.tag == tag_doorbell && done.result < 0 && done.result != -EAGAIN) {
      doorbell_ = -1;  // this way is broken; the register is left
      core_->transport->write32(KZ_REG_DOORBELL(id_), 0);
    }
    if (done.tag != tag_interrupt) continue;
    armed_ = false;
    if (done.result == sizeof irq_count_)
      core_->vectors.add(vector_, irq_count_);
    else if (done.result != -ECANCELED && done.result != -EINTR)
      unreadable_ = true;  // the peer has made the eventfd non-blocking: the flag is shared
  }
}

// Between waits no read is left under way: whoever counts the vector's interrupts must find them.
void TpuQueue::disarm() noexcept {
  try {
    if (!armed_) return;
    ring_.cancel(tag_interrupt, tag_cancel);
    for (Deadline deadline(1s); armed_ && !deadline.passed();) process(ring_.wait(deadline));
  } catch (const Error&) {
    // The ring is unusable; the next wait says so.
  }
}

// Books are exact while nobody shares the vector and no interrupt is merged on the way.
bool TpuQueue::exact() const {
  return spec_.interrupts && alone_ && core_->vectors.epoch(vector_) == epoch_ &&
         core_->transport->exact_interrupts();
}

uint64_t TpuQueue::owed() const {
  uint64_t had = interrupts() + lost_;
  return loud_ > had ? loud_ - had : 0;
}

Queue::Signal TpuQueue::signal() const {
  if (!spec_.interrupts) return {};
  return {core_->transport->vector_fd(vector_), slice(false)};
}

void TpuQueue::take_signal() {
  if (spec_.interrupts) core_->vectors.drain(vector_);
}

// True when every completion that we have taken had its interrupt, or has lost it by now.
bool TpuQueue::settle() const {
  note_excess();
  uint64_t missing = owed();
  if (missing == 0) return true;
  if (Clock::now() - last_loud_ < never_asked_for) return false;
  if (!grace_) grace_.emplace(interrupt_grace);
  if (!grace_->passed()) return false;
  grace_.reset();
  lost_ += missing;
  audit_.completion_without_interrupt += missing;
  return true;
}

// More interrupts than completions, those in memory included: an interrupt is raised after its completion is
// written.
void TpuQueue::note_excess() const {
  if (!exact()) return;
  uint64_t seen = interrupts();
  if (seen <= loud_ + unsure_ + noted_excess_) return;
  uint64_t good = loud_ + unsure_ + visible();
  if (seen <= good + noted_excess_) return;
  audit_.interrupt_without_completion += seen - good - noted_excess_;
  noted_excess_ = seen - good;
}

const QueueAudit& TpuQueue::audit() const {
  if (exact() && !dead() && core_->transport->alive()) {
    core_->vectors.drain(vector_);
    while (!settle()) {
      nap(200us);
      core_->vectors.drain(vector_);
    }
  }
  audit_.interrupts = irq_before_ + interrupts();
  return audit_;
}

}  // namespace kz::tpu
