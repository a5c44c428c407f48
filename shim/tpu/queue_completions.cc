// SPDX-License-Identifier: GPL-2.0-or-later
// The completion ring: taking completions off it, and what on it breaks the rules (shim/uapi/kz_cmd.h).
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "shim/base/error.h"
#include "shim/tpu/queue.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

constexpr int second_look_ms = 5;        // longer than any write of one completion takes
constexpr auto presence_budget = 200ms;  // for a device that may be gone

bool same(const kz_cqe& a, const kz_cqe& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

uint16_t load_status(const kz_cqe& cqe) { return __atomic_load_n(&cqe.status, __ATOMIC_ACQUIRE); }

// The status first: what it announces is there then.
kz_cqe load(const kz_cqe& slot) {
  uint16_t status = load_status(slot);
  kz_cqe copy;
  std::memcpy(&copy, &slot, sizeof copy);
  copy.status = status;
  return copy;
}

}  // namespace

bool TpuQueue::head_is_valid() const {
  uint16_t expected = (head_ & entries_) == 0 ? 1 : 0;
  return KZ_CQE_PHASE(load_status(cq_[head_ % entries_])) == expected;
}

// Completions that are there and not consumed.
uint64_t TpuQueue::visible() const {
  uint64_t n = 0;
  for (; n < entries_; ++n) {
    uint32_t at = head_ + static_cast<uint32_t>(n);
    uint16_t expected = (at & entries_) == 0 ? 1 : 0;
    if (KZ_CQE_PHASE(load_status(cq_[at % entries_])) != expected) break;
  }
  return n;
}

void TpuQueue::consume(std::vector<Completion>& out) {
  if (!head_is_valid()) return;
  auto now = Clock::now();
  while (head_is_valid()) {
    uint32_t at = head_ % entries_;
    last_lap_[at] = load(cq_[at]);
    ++head_;
    complete(last_lap_[at], now, out);
  }
  __atomic_store_n(&record_->cq_head, head_, __ATOMIC_RELEASE);
  // With more completions than commands the device may be waiting for room; it looks again only when rung.
  if (strays_ && !dead() && core_->transport->alive()) {
    strays_ = outstanding_ > entries_;
    ring();
  }
}

void TpuQueue::complete(const kz_cqe& cqe, Clock::time_point now, std::vector<Completion>& out) {
  if (KZ_CQE_CODE(cqe.status) > KZ_ST_INTERNAL) ++audit_.reserved_set;
  auto index = static_cast<uint16_t>(cqe.cid - cid_base_);
  if (index >= slots_.size() || slots_[index].state != Slot::State::waiting) return note_stray(cqe);
  if (cqe.queue != id_) ++audit_.wrong_queue;
  check_sq_head(cqe);
  Slot& slot = slots_[index];
  slot.state = Slot::State::ended;
  --outstanding_;
  quiet_outstanding_ -= slot.quiet;
  ++audit_.completed;
  if (!slot.quiet) {
    ++loud_;
    last_loud_ = now;
    grace_.reset();
  }
  out.push_back({slot.ticket, static_cast<Status>(KZ_CQE_CODE(cqe.status)), cqe.result, slot.submitted, now});
}

// A completion of nothing that is outstanding. It takes room in the ring and may have raised an interrupt.
void TpuQueue::note_stray(const kz_cqe& cqe) {
  auto index = static_cast<uint16_t>(cqe.cid - cid_base_);
  bool ours = index < slots_.size() && slots_[index].state == Slot::State::ended;
  if (cqe.queue != id_)
    ++audit_.wrong_queue;
  else
    ++(ours ? audit_.duplicate_completion : audit_.unknown_completion);
  ++unsure_;
  strays_ = true;
}

// sq_head counts the commands fetched when the completion was written, 16 bits of it. What was not fetched
// then cannot have completed before, so it is still outstanding, and this command is not among it.
void TpuQueue::check_sq_head(const kz_cqe& cqe) {
  auto unfetched = static_cast<uint16_t>(tail_ - cqe.sq_head);
  if (unfetched >= outstanding_) ++audit_.bad_sq_head;
}

// Nothing came in time: is there a completion that its phase bit hides, or one out of turn? What changes
// while we look twice is being written.
void TpuQueue::look_out_of_turn() {
  if (outstanding_ == 0) return;
  auto changed = [&](uint32_t i) {
    uint32_t at = (head_ + i) % entries_;
    return !same(load(cq_[at]), last_lap_[at]);
  };
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < entries_; ++i)
    if (changed(i)) found.push_back(i);
  if (found.empty() || head_is_valid()) return;
  ::poll(nullptr, 0, second_look_ms);
  if (head_is_valid()) return;
  for (uint32_t i : found) {
    uint32_t at = (head_ + i) % entries_;
    last_lap_[at] = load(cq_[at]);
    ++audit_.bad_phase;
  }
}

// Does the silence have a reason? A device that is lost reads all ones.
void TpuQueue::look_for_device() const {
  auto magic = core_->transport->glance(KZ_REG_MAGIC, presence_budget);
  if (!magic || *magic == KZ_MAGIC) return;
  throw Error({Errc::gone, "wait on", fmt::format("queue {} of {}", id_, core_->transport->name()),
               *magic == 0xffffffff ? "registers read all ones" : fmt::format("MAGIC reads {:#x}", *magic),
               "check power and link of the device", 0});
}

}  // namespace kz::tpu
