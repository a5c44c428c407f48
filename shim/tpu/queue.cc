// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/queue.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/tpu/encode.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

constexpr uint64_t tag_doorbell = 1, tag_interrupt = 2, tag_cancel = 3;
// A completion in memory whose interrupt has not come within this time counts
// as lost.
constexpr auto interrupt_grace = 100ms;
constexpr auto reset_budget = 200ms;  // of a destructor
constexpr auto enable_budget = 1s;

bool same(const kz_cqe& a, const kz_cqe& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

uint16_t load_status(const kz_cqe& cqe) { return __atomic_load_n(&cqe.status, __ATOMIC_ACQUIRE); }

}  // namespace

TpuQueue::TpuQueue(std::shared_ptr<Core> core, uint16_t id, uint32_t context, const QueueSpec& spec,
                   std::function<void(uint16_t)> on_close)
    : core_(std::move(core)),
      id_(id),
      context_(context),
      spec_(spec),
      entries_(1u << spec.order),
      vector_(spec.vector.value_or(static_cast<uint16_t>(id % core_->vectors.size()))),
      on_close_(std::move(on_close)),
      generation_(core_->generation),
      last_lap_(entries_),
      ring_(16),
      slots_(std::min<uint32_t>(std::max(4 * entries_, 64u), 65536)) {
  uint64_t sq_bytes = align_up(entries_ * sizeof(kz_cmd), 4096),
           cq_bytes = align_up(entries_ * sizeof(kz_cqe), 4096);
  memory_ = std::make_unique<DmaMemory>(core_, DmaSpec{.size = {sq_bytes + cq_bytes + 4096}});
  auto* base = memory_->bytes().data();
  sq_ = reinterpret_cast<kz_cmd*>(base);
  cq_ = reinterpret_cast<kz_cqe*>(base + sq_bytes);
  record_ = reinterpret_cast<kz_dbrec*>(base + sq_bytes + cq_bytes);
  core_->vectors.drain(vector_);  // what is left of an earlier user is not ours
  core_->vectors.join(vector_);
  try {
    configure();
  } catch (...) {
    core_->vectors.leave(vector_);
    throw;
  }
}

TpuQueue::~TpuQueue() {
  try {
    if (armed_) {
      ring_.cancel(tag_interrupt, tag_cancel);
      Deadline deadline(reset_budget);
      for (bool over = false; !over && !deadline.passed();)
        for (auto& done : ring_.wait(deadline))
          if (done.tag == tag_interrupt) {
            over = true;
            if (done.result == sizeof irq_count_) core_->vectors.add(vector_, irq_count_);
          }
    }
    if (!dead() && !core_->wedged && core_->transport->alive()) {
      core_->transport->write32(reg(KZ_Q_CTRL), KZ_QCTRL_RESET);
      wait_register(*core_->transport, reg(KZ_Q_CTRL), KZ_QCTRL_RESET, 0, Deadline(reset_budget));
    }
  } catch (const Error&) {
    core_->wedged = true;
  }
  core_->vectors.leave(vector_);
  if (on_close_) on_close_(id_);
}

uint32_t TpuQueue::reg(uint32_t offset) const { return KZ_REG_QUEUE(id_) + offset; }

void TpuQueue::check_alive(const char* what) const {
  if (dead())
    throw Error({Errc::gone, what, fmt::format("queue {}", id_),
                 "the device was reset since the queue was opened", "open a new context and queue", 0});
}

void TpuQueue::clear_rings() {
  std::memset(memory_->bytes().data(), 0, memory_->bytes().size());
  std::fill(last_lap_.begin(), last_lap_.end(), kz_cqe{});
  tail_ = head_ = 0;
  overfilled_ = held_ = false;
}

void TpuQueue::configure() {
  clear_rings();
  Transport& t = *core_->transport;
  auto base = memory_->iova().value;
  auto pair = [&](uint32_t lo, const void* p) {
    uint64_t at = base + static_cast<uint64_t>(static_cast<const std::byte*>(p) - memory_->bytes().data());
    t.write32(reg(lo), static_cast<uint32_t>(at));
    t.write32(reg(lo + 4), static_cast<uint32_t>(at >> 32));
  };
  pair(KZ_Q_SQ_LO, sq_);
  pair(KZ_Q_CQ_LO, cq_);
  pair(KZ_Q_DBREC_LO, record_);
  t.write32(reg(KZ_Q_ORDER), spec_.order);
  t.write32(reg(KZ_Q_VECTOR), vector_);
  t.write32(reg(KZ_Q_CONTEXT), context_);
  t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_ENABLE | (spec_.interrupts ? KZ_QCTRL_IRQ : 0));
  // The device takes the setup over in its own time: off, then running or an error.
  Deadline deadline(enable_budget);
  uint32_t state;
  do state = t.read32(reg(KZ_Q_STATE));
  while ((state & 0xff) == KZ_QSTATE_OFF && !deadline.passed());
  if ((state & 0xff) == KZ_QSTATE_RUN) return;
  bool off = (state & 0xff) == KZ_QSTATE_OFF;
  throw Error({state == 0xffffffff ? Errc::gone
               : off               ? Errc::timeout
                                   : Errc::protocol,
               "open", fmt::format("queue {} of {}", id_, t.name()),
               fmt::format("{} reads {:#x} {} after enabling", register_name(reg(KZ_Q_STATE)), state,
                           kz::to_string(deadline.elapsed())),
               "", 0});
}

Ticket TpuQueue::put(const Command& command) {
  kz_cmd c = encode(command);
  while (slots_[next_cid_].state == Slot::State::waiting) next_cid_ = (next_cid_ + 1) % slots_.size();
  auto cid = static_cast<uint16_t>(next_cid_);
  next_cid_ = (next_cid_ + 1) % slots_.size();
  c.cid = cid;
  bool phase = (tail_ & entries_) == 0;  // 1 on the first lap
  c.flags = static_cast<uint8_t>((c.flags & ~KZ_CMD_PHASE) | (phase ? KZ_CMD_PHASE : 0));

  kz_cmd& slot = sq_[tail_ % entries_];
  std::memcpy(&slot.u, &c.u, sizeof c.u);
  uint64_t first;
  std::memcpy(&first, &c, sizeof first);
  __atomic_store_n(reinterpret_cast<uint64_t*>(&slot), first, __ATOMIC_RELEASE);
  ++tail_;
  __atomic_store_n(&record_->sq_tail, tail_, __ATOMIC_RELEASE);

  slots_[cid] = {Slot::State::waiting, (c.flags & KZ_CMD_NOIRQ) != 0, next_ticket_, Clock::now()};
  ++outstanding_;
  ++audit_.submitted;
  held_ = true;
  return next_ticket_++;
}

Ticket TpuQueue::submit(const Command& command, bool hold) {
  check_alive("submit to");
  if (outstanding_ >= entries_)
    throw Error({Errc::busy, "submit to", fmt::format("queue {}", id_),
                 fmt::format("all {} entries are in use", entries_), "collect completions first", 0});
  Ticket ticket = put(command);
  if (!hold) ring();
  return ticket;
}

void TpuQueue::overfill(const Command& command) {
  check_alive("overfill");
  if (outstanding_ + 1 >= slots_.size())
    throw Error({Errc::busy, "overfill", fmt::format("queue {}", id_), "no command id is left", "", 0});
  overfilled_ = true;
  put(command);
}

void TpuQueue::ring() {
  check_alive("ring");
  held_ = false;
  int fd = core_->transport->doorbell_fd(id_);
  if (fd < 0) return core_->transport->write32(KZ_REG_DOORBELL(id_), 0);
  ring_.write_eventfd(fd, tag_doorbell);
  ring_.submit();
}

uint16_t TpuQueue::cid(Ticket ticket) const {
  for (size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].state == Slot::State::waiting && slots_[i].ticket == ticket)
      return static_cast<uint16_t>(i);
  throw Error({Errc::not_found, "find", fmt::format("ticket {} of queue {}", ticket, id_),
               "it is not outstanding", "", 0});
}

void TpuQueue::complete(const kz_cqe& cqe, std::vector<Completion>& out) {
  if (cqe.queue != id_) ++audit_.wrong_queue;
  // sq_head counts fetched commands, 16 bits of it: it can be at most as far as
  // we have submitted.
  if (static_cast<uint16_t>(tail_ - cqe.sq_head) > 4 * entries_) ++audit_.bad_sq_head;
  if (cqe.cid >= slots_.size() || slots_[cqe.cid].state == Slot::State::unused) {
    ++audit_.unknown_completion;
    return;
  }
  Slot& slot = slots_[cqe.cid];
  if (slot.state == Slot::State::ended) {
    ++audit_.duplicate_completion;
    return;
  }
  slot.state = Slot::State::ended;
  --outstanding_;
  ++audit_.completed;
  if (!slot.quiet) ++loud_;
  out.push_back(
      {slot.ticket, static_cast<Status>(KZ_CQE_CODE(cqe.status)), cqe.result, slot.submitted, Clock::now()});
}

void TpuQueue::consume(std::vector<Completion>& out) {
  bool any = false;
  for (;;) {
    const kz_cqe& slot = cq_[head_ % entries_];
    bool expected = (head_ & entries_) == 0;
    if ((load_status(slot) & 1u) != (expected ? 1u : 0u)) break;
    kz_cqe cqe = slot;
    last_lap_[head_ % entries_] = cqe;
    ++head_;
    any = true;
    complete(cqe, out);
  }
  if (!any) return;
  __atomic_store_n(&record_->cq_head, head_, __ATOMIC_RELEASE);
  // The device may be waiting for room; it looks again only when rung.
  if (overfilled_) {
    ring();
    if (outstanding_ == 0) overfilled_ = false;
  }
}

std::vector<Completion> TpuQueue::poll() {
  if (dead()) return drop_all();
  std::vector<Completion> out;
  consume(out);
  return out;
}

void TpuQueue::arm() {
  if (armed_) return;
  ring_.read_eventfd(core_->transport->vector_fd(vector_), &irq_count_, tag_interrupt);
  armed_ = true;
}

// Handles what the ring has within `wait`. True when an interrupt was among it.
bool TpuQueue::take_interrupts(std::chrono::nanoseconds wait) const {
  bool came = false;
  for (auto& done : ring_.wait(Deadline(wait))) {
    if (done.tag != tag_interrupt) continue;
    armed_ = false;
    if (done.result != sizeof irq_count_) continue;
    core_->vectors.add(vector_, irq_count_);
    interrupts_ += irq_count_;
    came = true;
  }
  return came;
}

// True when an interrupt came before the deadline.
bool TpuQueue::await_interrupt(Deadline deadline) {
  do {
    arm();
    if (take_interrupts(deadline.left())) return true;
  } while (!deadline.passed());
  return false;
}

std::vector<Completion> TpuQueue::wait(Deadline deadline) {
  if (dead()) return drop_all();
  if (held_) ring();
  std::vector<Completion> out;
  consume(out);
  while (out.empty()) {
    if (!core_->transport->alive())
      throw Error({Errc::gone, "wait on", fmt::format("queue {}", id_), "the connection to the device closed",
                   "", 0});
    auto slice = std::min<std::chrono::nanoseconds>(deadline.left(),
                                                    core_->vectors.shared(vector_) ? 1ms : interrupt_grace);
    if (!spec_.interrupts) {
      timespec nap{0, 20'000};
      ::ppoll(nullptr, 0, &nap, nullptr);
      consume(out);
    } else if (await_interrupt(Deadline(slice))) {
      consume(out);
    } else {
      consume(out);
      if (!out.empty() && !core_->vectors.shared(vector_)) {
        // It may have come between the wait's end and the look at memory.
        if (!await_interrupt(Deadline(2ms))) ++lost_interrupts_;
      }
    }
    if (out.empty() && deadline.passed()) {
      note_stalled();
      break;
    }
  }
  return out;
}

// Nothing came in time: is there a completion that the phase bit hides, or one
// out of turn?
void TpuQueue::note_stalled() {
  if (outstanding_ == 0) return;
  for (uint32_t i = 0; i < entries_; ++i) {
    uint32_t at = head_ + i;
    kz_cqe cqe = cq_[at % entries_];
    if (same(cqe, last_lap_[at % entries_])) continue;
    last_lap_[at % entries_] = cqe;
    ++audit_.bad_phase;
  }
}

std::vector<Completion> TpuQueue::drop_all() {
  std::vector<Completion> out;
  auto now = Clock::now();
  for (Slot& s : slots_) {
    if (s.state != Slot::State::waiting) continue;
    s.state = Slot::State::ended;
    out.push_back({s.ticket, Status::lost, 0, s.submitted, now});
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.ticket < b.ticket; });
  audit_.dropped += out.size();
  outstanding_ = 0;
  return out;
}

std::vector<Completion> TpuQueue::reset(Deadline deadline) {
  if (dead()) return drop_all();
  Transport& t = *core_->transport;
  t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_RESET);
  wait_register(t, reg(KZ_Q_CTRL), KZ_QCTRL_RESET, 0, deadline);
  std::vector<Completion> out;
  consume(out);
  auto lost = drop_all();
  out.insert(out.end(), lost.begin(), lost.end());
  if (spec_.interrupts && !core_->vectors.shared(vector_)) settle();
  for (Slot& s : slots_) s = {};
  // Books of interrupts start anew: what was raised for dropped commands cannot
  // be told.
  loud_ = interrupts_ = lost_interrupts_ = 0;
  configure();
  return out;
}

// Takes what the vector still holds. An interrupt may be on its way: it is
// raised after the completion is written.
void TpuQueue::settle() const {
  Deadline deadline(20ms);
  for (;;) {
    interrupts_ += core_->vectors.drain(vector_);
    if (armed_) take_interrupts(0ns);
    if (interrupts_ >= loud_ || deadline.passed()) return;
    timespec nap{0, 200'000};
    ::ppoll(nullptr, 0, &nap, nullptr);
  }
}

const QueueAudit& TpuQueue::audit() const {
  bool exact = spec_.interrupts && outstanding_ == 0 && !dead() && !core_->vectors.shared(vector_) &&
               core_->transport->exact_interrupts();
  if (exact) {
    settle();
    audit_.interrupt_without_completion = interrupts_ > loud_ ? interrupts_ - loud_ : 0;
    audit_.completion_without_interrupt =
        std::max(lost_interrupts_, loud_ > interrupts_ ? loud_ - interrupts_ : 0);
  } else {
    audit_.completion_without_interrupt = lost_interrupts_;
  }
  audit_.interrupts = interrupts_;
  return audit_;
}

}  // namespace kz::tpu
