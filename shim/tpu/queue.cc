// SPDX-License-Identifier: GPL-2.0-or-later
// Set-up, submission and life of a queue.
#include "shim/tpu/queue.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "shim/base/error.h"
#include "shim/tpu/encode.h"
#include "shim/tpu/queue_tags.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

constexpr auto close_budget = 300ms;
constexpr auto enable_budget = 5s;  // of a device whose host may be busy, too
constexpr unsigned ring_entries = 8;
// Ids of different queues do not meet, so that a completion in the wrong ring is not taken for one of our
// own.
constexpr uint16_t ids_apart = 2048;
static_assert(sizeof(kz_cmd) % alignof(kz_dbrec) == 0);

}  // namespace

TpuQueue::TpuQueue(std::shared_ptr<Core> core, uint16_t id, uint32_t context, const QueueSpec& spec,
                   std::function<void(uint16_t)> on_close)
    : core_(std::move(core)),
      id_(id),
      context_(context),
      spec_(spec),
      entries_(1u << spec.order),
      vector_(spec.vector.value_or(static_cast<uint16_t>(id % core_->vectors.size()))),
      cid_base_(static_cast<uint16_t>(id * ids_apart)),
      on_close_(std::move(on_close)),
      generation_(core_->generation),
      last_lap_(entries_),
      ring_(ring_entries),
      doorbell_(core_->transport->doorbell_fd(id)),
      slots_(std::min<uint32_t>(std::max(4 * entries_, 64u), 65536)) {
  if (vector_ >= core_->vectors.size())
    throw Error({Errc::usage, "open", fmt::format("queue {}", id_),
                 fmt::format("vector {} of {}", vector_, core_->vectors.size()), "", 0});
  uint64_t sq_bytes = entries_ * sizeof(kz_cmd);
  sq_memory_ = std::make_unique<DmaMemory>(
      core_, DmaSpec{.size = {sq_bytes + sizeof(kz_dbrec)}, .device_writes = false});
  cq_memory_ =
      std::make_unique<DmaMemory>(core_, DmaSpec{.size = {entries_ * sizeof(kz_cqe)}, .device_reads = false});
  sq_ = reinterpret_cast<kz_cmd*>(sq_memory_->bytes().data());
  record_ = reinterpret_cast<kz_dbrec*>(sq_memory_->bytes().data() + sq_bytes);
  cq_ = reinterpret_cast<kz_cqe*>(cq_memory_->bytes().data());
  int files[] = {core_->transport->vector_fd(vector_), doorbell_};
  ring_.register_files(std::span(files).first(doorbell_ >= 0 ? 2 : 1));
  try {
    if (spec_.interrupts) {
      alone_ = core_->vectors.join(vector_);
      joined_ = true;
      epoch_ = core_->vectors.epoch(vector_);
    }
    configure();
  } catch (...) {
    on_close_ = nullptr;  // the number goes back where it was taken
    close();
    throw;
  }
}

TpuQueue::~TpuQueue() { close(); }

void TpuQueue::close() noexcept {
  disarm();
  if (!dead())
    core_->cleanup.run([&](std::chrono::nanoseconds budget) {
      Transport& t = *core_->transport;
      auto there = t.glance(reg(KZ_Q_CTRL), budget);
      if (!there) throw Error({Errc::timeout, "close", fmt::format("queue {}", id_), "no answer", "", 0});
      t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_RESET);
      wait_register(t, reg(KZ_Q_CTRL), KZ_QCTRL_RESET, 0,
                    Deadline(std::min<std::chrono::nanoseconds>(budget, close_budget)));
    });
  if (joined_) core_->vectors.leave(vector_);
  joined_ = false;
  if (on_close_) on_close_(id_);
}

uint32_t TpuQueue::reg(uint32_t offset) const { return KZ_REG_QUEUE(id_) + offset; }

void TpuQueue::check_usable(const char* what) const {
  if (dead())
    throw Error({Errc::gone, what, fmt::format("queue {}", id_),
                 "the device was reset or given up since it was opened", "open a new context and queue", 0});
  if (!core_->transport->alive())
    throw Error({Errc::gone, what, fmt::format("queue {} of {}", id_, core_->transport->name()),
                 "the connection to the device is closed", "", 0});
}

void TpuQueue::clear_rings() {
  std::ranges::fill(sq_memory_->bytes(), std::byte{0});
  std::ranges::fill(cq_memory_->bytes(), std::byte{0});
  std::fill(last_lap_.begin(), last_lap_.end(), kz_cqe{});
  tail_ = head_ = 0;
  held_ = strays_ = false;
}

void TpuQueue::configure() {
  clear_rings();
  // What an earlier user of the vector left is not ours.
  core_->vectors.drain(vector_);
  irq_base_ = core_->vectors.count(vector_);
  loud_ = unsure_ = lost_ = noted_excess_ = 0;
  Transport& t = *core_->transport;
  // An owner whose closing was not heard may have left it enabled, and then it takes no new setup.
  t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_RESET);
  wait_register(t, reg(KZ_Q_CTRL), KZ_QCTRL_RESET, 0, Deadline(enable_budget));
  auto pair = [&](uint32_t lo, uint64_t address) {
    t.write32(reg(lo), static_cast<uint32_t>(address));
    t.write32(reg(lo + 4), static_cast<uint32_t>(address >> 32));
  };
  uint64_t sq = sq_memory_->iova().value;
  pair(KZ_Q_SQ_LO, sq);
  pair(KZ_Q_CQ_LO, cq_memory_->iova().value);
  pair(KZ_Q_DBREC_LO, sq + entries_ * sizeof(kz_cmd));
  t.write32(reg(KZ_Q_ORDER), spec_.order);
  t.write32(reg(KZ_Q_VECTOR), vector_);
  t.write32(reg(KZ_Q_CONTEXT), context_);
  t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_ENABLE | (spec_.interrupts ? KZ_QCTRL_IRQ : 0));
  await_running();
}

// The device takes the set-up over in its own time: off, then running or an error.
void TpuQueue::await_running() {
  Transport& t = *core_->transport;
  Deadline deadline(enable_budget);
  uint32_t state = t.read32(reg(KZ_Q_STATE));
  for (; (state & 0xff) == KZ_QSTATE_OFF && !deadline.passed(); state = t.read32(reg(KZ_Q_STATE)))
    ::poll(nullptr, 0, 0);
  if ((state & 0xff) == KZ_QSTATE_RUN) return;
  bool off = (state & 0xff) == KZ_QSTATE_OFF;
  throw Error({state == 0xffffffff ? Errc::gone
               : off               ? Errc::timeout
                                   : Errc::protocol,
               "open", fmt::format("queue {} of {}", id_, t.name()),
               fmt::format("{}: read {:#x} after {} of {}{}", register_name(reg(KZ_Q_STATE)), state,
                           to_string(deadline.elapsed()), to_string(deadline.budget()),
                           state == 0xffffffff ? ", registers read all ones" : ""),
               "", 0});
}

Ticket TpuQueue::put(const Command& command) {
  kz_cmd c = encode(command);
  while (slots_[next_slot_].state == Slot::State::waiting) next_slot_ = (next_slot_ + 1) % slots_.size();
  Slot& s = slots_[next_slot_];
  c.cid = static_cast<uint16_t>(cid_base_ + next_slot_);
  next_slot_ = (next_slot_ + 1) % slots_.size();
  bool phase = (tail_ & entries_) == 0;  // 1 on the first lap
  c.flags = static_cast<uint8_t>((c.flags & ~KZ_CMD_PHASE) | (phase ? KZ_CMD_PHASE : 0));

  // The byte with the phase goes last; it is in the first eight.
  kz_cmd& slot = sq_[tail_ % entries_];
  std::memcpy(&slot.u, &c.u, sizeof c.u);
  uint64_t first;
  std::memcpy(&first, &c, sizeof first);
  __atomic_store_n(reinterpret_cast<uint64_t*>(&slot), first, __ATOMIC_RELEASE);
  ++tail_;
  __atomic_store_n(&record_->sq_tail, tail_, __ATOMIC_RELEASE);

  s = {Slot::State::waiting, (c.flags & KZ_CMD_NOIRQ) != 0, next_ticket_, Clock::now()};
  ++outstanding_;
  quiet_outstanding_ += s.quiet;
  ++audit_.submitted;
  held_ = true;
  return next_ticket_++;
}

Ticket TpuQueue::submit(const Command& command, bool hold) {
  check_usable("submit to");
  if (outstanding_ >= entries_)
    throw Error({Errc::busy, "submit to", fmt::format("queue {}", id_),
                 fmt::format("all {} entries are in use", entries_), "collect completions first", 0});
  Ticket ticket = put(command);
  if (!hold) ring();
  return ticket;
}

void TpuQueue::overfill(const Command& command) {
  check_usable("overfill");
  if (outstanding_ + 1 >= slots_.size())
    throw Error({Errc::busy, "overfill", fmt::format("queue {}", id_), "no command id is left", "", 0});
  strays_ = true;
  put(command);
  ring();
}

void TpuQueue::ring() {
  check_usable("ring");
  held_ = false;
  if (doorbell_ < 0) return core_->transport->write32(KZ_REG_DOORBELL(id_), 0);
  ring_.write_eventfd(doorbell_, tag_doorbell);
  ring_.submit();
  process(ring_.peek());
}

uint16_t TpuQueue::cid(Ticket ticket) const {
  auto it = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& s) {
    return s.state == Slot::State::waiting && s.ticket == ticket;
  });
  if (it == slots_.end())
    throw Error({Errc::not_found, "find", fmt::format("ticket {} of queue {}", ticket, id_),
                 "it is not outstanding", "", 0});
  return static_cast<uint16_t>(cid_base_ + (it - slots_.begin()));
}

std::vector<Completion> TpuQueue::drop_all() {
  std::vector<Completion> out;
  auto now = Clock::now();
  for (Slot& s : slots_) {
    if (s.state != Slot::State::waiting) continue;
    s.state = Slot::State::ended;
    out.push_back({s.ticket, Status::lost, 0, s.submitted, now});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  audit_.dropped += out.size();
  outstanding_ = quiet_outstanding_ = 0;
  return out;
}

std::vector<Completion> TpuQueue::reset(Deadline deadline) {
  if (dead()) return drop_all();
  check_usable("reset");
  Transport& t = *core_->transport;
  t.write32(reg(KZ_Q_CTRL), KZ_QCTRL_RESET);
  wait_register(t, reg(KZ_Q_CTRL), KZ_QCTRL_RESET, 0, deadline);
  std::vector<Completion> out;
  consume(out);
  auto lost = drop_all();
  out.insert(out.end(), lost.begin(), lost.end());
  // The books of interrupts start anew: a completion that was cut off may have lost its own.
  core_->vectors.drain(vector_);
  note_excess();
  irq_before_ += interrupts();
  for (Slot& s : slots_) s = {};
  configure();
  return out;
}

}  // namespace kz::tpu
