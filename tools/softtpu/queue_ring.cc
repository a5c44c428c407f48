// SPDX-License-Identifier: GPL-2.0-or-later
// Rings and doorbell record of a queue: what the device reads and writes in host memory (shim/uapi/kz_cmd.h).
#include <cstring>

#include "tools/softtpu/queue.h"

namespace kz::softtpu {

namespace {

// The host's counts move while we look: load them with acquire, so that what they announce is there.
uint32_t load_acquire(const std::byte* p) {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(p), __ATOMIC_ACQUIRE);
}

}  // namespace

std::optional<Queue::Counts> Queue::load_counts() {
  static_assert(offsetof(kz_dbrec, sq_tail) == 0 && offsetof(kz_dbrec, cq_head) == 4);
  Counts c{};
  if (std::byte* p = shared_.bus.acquire(run_.dbrec, sizeof c, false); p != nullptr) {
    c.tail = load_acquire(p);
    c.head = load_acquire(p + offsetof(kz_dbrec, cq_head));
    shared_.bus.release();
    return c;
  }
  if (!shared_.bus.read(run_.dbrec, std::as_writable_bytes(std::span(&c, 1)))) return std::nullopt;
  return c;
}

// More commands than the ring has entries? Against the head that we fetched to this is certain. Against the
// head that the host consumed to it holds only after a doorbell, when the host has written both counts; and
// it is looked at twice.
bool Queue::overrun(const Counts& counts, bool rung) {
  if (counts.tail - sq_head_ > entries()) return true;
  if (!rung || counts.tail - counts.head <= entries()) return false;
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  auto again = load_counts();
  return again && again->tail - again->head > entries();
}

bool Queue::fetch(bool rung) {
  std::lock_guard fetching(fetch_m_);
  auto counts = load_counts();
  if (!counts) {
    set_error(KZ_QERR_DMA);
    return false;
  }
  bool blind = false;
  if (counts->tail != sq_head_ && overrun(*counts, rung)) {
    blind = shared_.faults.due(Row::Q16) != nullptr;  // takes what is in the ring now, overwritten or not
    if (!blind) set_error(KZ_QERR_OVERFLOW);
    if (!blind || counts->tail - sq_head_ > 2 * entries()) return false;
  }
  bool any = false;
  while (sq_head_ != counts->tail && !stopping()) {
    if (std::lock_guard lock(m_); pending_.size() >= entries()) break;
    Entry entry;
    uint32_t head = sq_head_;
    uint64_t at = run_.sq + uint64_t{head & (entries() - 1)} * sizeof(kz_cmd);
    if (!shared_.bus.read(at, std::as_writable_bytes(std::span(&entry.cmd, 1)))) {
      set_error(KZ_QERR_DMA);
      return any;
    }
    bool phase = (entry.cmd.flags & KZ_CMD_PHASE) != 0, expected = (head >> run_.order & 1) == 0;
    if (phase != expected && !blind) break;
    std::lock_guard lock(m_);
    pending_.push_back(entry);
    sq_head_ = head + 1;
    any = true;
  }
  return any;
}

bool Queue::glance() {
  if (!running()) return false;
  Config run;
  {
    std::lock_guard lock(m_);  // not fetch_m_, which the worker may hold while it waits for this very thread
    run = run_;
  }
  uint64_t ring = sizeof(kz_cmd) << run.order;
  if (!shared_.bus.is_direct(run.dbrec, sizeof(kz_dbrec)) || !shared_.bus.is_direct(run.sq, ring))
    return false;
  bool any = fetch(false);
  if (any) poke();  // the worker may just have gone to sleep
  return any;
}

void Queue::act_on_aborts() {
  for (;;) {
    Entry entry;
    {
      std::lock_guard lock(m_);
      auto it = pending_.begin();
      auto waits = [](const Entry& e) {
        return e.cmd.opcode == KZ_OP_ABORT && (e.cmd.flags & KZ_CMD_FENCE) == 0 && !e.abort_acting &&
               !e.abort_acted && !e.aborted;
      };
      while (it != pending_.end() && !waits(*it)) ++it;
      if (it == pending_.end()) return;
      it->abort_acting = true;
      entry = *it;
    }
    act_on_abort(entry);
    std::lock_guard lock(m_);
    for (Entry& e : pending_) {
      if (!e.abort_acting || e.cmd.cid != entry.cmd.cid) continue;
      e.abort_acting = false;
      e.abort_acted = true;
      e.abort_status = entry.abort_status;
      e.abort_result = entry.abort_result;
    }
    changed_.notify_all();
  }
}

// Fills in status and result.
void Queue::act_on_abort(Entry& entry) {
  entry.abort_acted = true;
  if (auto bad = front_check(entry.cmd)) {
    entry.abort_status = *bad;
    return;
  }
  const kz_abort& a = entry.cmd.u.abort;
  if (a.queue >= shared_.queues.size()) {
    entry.abort_status = KZ_ST_BAD_FIELD;
    return;
  }
  Queue& target = *shared_.queues[a.queue];
  if (context_ != 0 && target.context_ != context_) {
    entry.abort_status = KZ_ST_DENIED;
    return;
  }
  bool itself = a.queue == id_ && a.cid == entry.cmd.cid;
  bool spread = shared_.faults.due(Row::Q17) != nullptr;
  entry.abort_result = !itself && target.abort(a.cid, spread) ? 1 : 0;
}

void Queue::interrupt(uint32_t vector) {
  if (shared_.faults.due(Row::Q01) != nullptr) return;
  if (const Fault* f = shared_.faults.due(Row::Q03))
    vector = static_cast<uint32_t>((vector + f->uparam("vector_offset")) % shared_.vectors);
  shared_.irqs.raise(vector);
}

void Queue::complete(const kz_cmd& cmd, uint16_t status, uint64_t result) {
  if (const Fault* f = shared_.faults.due(Row::Q08)) status = static_cast<uint16_t>(f->uparam("status"));
  kz_cqe cqe{result, static_cast<uint16_t>(sq_head_), id_, cmd.cid, static_cast<uint16_t>(status << 1)};
  bool quiet = (cmd.flags & KZ_CMD_NOIRQ) != 0;
  if (const Fault* f = shared_.faults.due(Row::Q12)) {
    size_t n = shared_.queues.size();
    auto other = static_cast<uint16_t>((id_ + f->uparam("queue_offset")) % n);
    for (size_t i = 0; i < n; ++i, other = static_cast<uint16_t>((other + 1) % n))
      if (other != id_ && shared_.queues[other]->running() && shared_.queues[other]->accept_stray(cqe))
        return;
    cqe.queue = other;  // no other ring to spoil: at least the wrong name
  }
  bool posted = post(cqe, true);
  if (posted && !quiet && (ctrl_ & KZ_QCTRL_IRQ) != 0) interrupt(run_.vector);
}

bool Queue::accept_stray(kz_cqe cqe) {
  if (!post(cqe, false)) return false;
  uint32_t vector;
  {
    std::lock_guard lock(complete_m_);
    vector = run_.vector;
  }
  if ((ctrl_ & KZ_QCTRL_IRQ) != 0) interrupt(vector);
  return true;
}

// Room in the completion ring as the host last told; looks again where that is none.
bool Queue::wait_room() {
  for (;;) {
    {
      std::lock_guard lock(complete_m_);
      if (cq_tail_ - cq_head_ < entries()) return true;
    }
    auto counts = load_counts();
    if (!counts) {
      set_error(KZ_QERR_DMA);
      return false;
    }
    {
      std::lock_guard lock(complete_m_);
      bool moved = cq_head_ != counts->head;
      cq_head_ = counts->head;
      if (cq_tail_ - cq_head_ < entries()) return true;
      if (moved) continue;
    }
    if (shared_.faults.due(Row::Q16) != nullptr) return true;  // writes over what was not consumed
    bool rung = wait_work();
    // Told by a doorbell, and still more outstanding than there are entries: nobody will make room for this
    // one.
    if (auto now = load_counts();
        rung && now && overrun(*now, true) && shared_.faults.due(Row::Q16) == nullptr)
      set_error(KZ_QERR_OVERFLOW);
    if (stopping() || (state_ & 0xff) == KZ_QSTATE_ERROR) return false;
  }
}

bool Queue::post(kz_cqe cqe, bool may_wait) {
  if (may_wait && !wait_room()) return false;
  std::lock_guard lock(complete_m_);
  uint32_t tail = cq_tail_;
  if (!may_wait && tail - cq_head_ >= entries()) return false;
  bool phase = (tail >> run_.order & 1) == 0;
  bool wrapped = tail != 0 && (tail & (entries() - 1)) == 0;
  if (wrapped && shared_.faults.due(Row::Q09) != nullptr) phase = !phase;
  cqe.status = static_cast<uint16_t>((cqe.status & ~1u) | (phase ? 1u : 0u));
  if (!store(run_.cq + uint64_t{tail & (entries() - 1)} * sizeof cqe, cqe)) {
    set_error(KZ_QERR_DMA);
    return false;
  }
  cq_tail_ = tail + 1;
  return true;
}

bool Queue::store(uint64_t iova, const kz_cqe& cqe) {
  std::byte* p = shared_.bus.acquire(iova, sizeof cqe, true);
  if (p == nullptr) return shared_.bus.write(iova, std::as_bytes(std::span(&cqe, 1)));
  std::memcpy(p, &cqe, offsetof(kz_cqe, status));
  auto* status = reinterpret_cast<uint16_t*>(p + offsetof(kz_cqe, status));
  __atomic_store_n(status, cqe.status, __ATOMIC_RELEASE);
  shared_.bus.release();
  return true;
}

}  // namespace kz::softtpu
