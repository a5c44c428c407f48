// SPDX-License-Identifier: GPL-2.0-or-later
// Registers and life of a queue; the worker is in queue_worker.cc, the rings in queue_ring.cc.
#include "tools/softtpu/queue.h"

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <memory>
#include <string>

#include "shim/base/error.h"

namespace kz::softtpu {

namespace {

// How long a thread of ours could have run and got no processor (Documentation/scheduler/sched-stats.rst); 0
// where the kernel does not tell.
std::chrono::nanoseconds waited_for_processor(pid_t thread) {
  unsigned long long ran = 0, waited = 0;
  std::unique_ptr<FILE, int (*)(FILE*)> f(
      std::fopen(("/proc/self/task/" + std::to_string(thread) + "/schedstat").c_str(), "re"), std::fclose);
  if (f == nullptr || std::fscanf(f.get(), "%llu %llu", &ran, &waited) != 2) return {};
  return std::chrono::nanoseconds(waited);
}

uint64_t with_low(uint64_t v, uint32_t low) { return (v & 0xffffffff00000000) | low; }
uint64_t with_high(uint64_t v, uint32_t high) { return (v & 0xffffffff) | uint64_t{high} << 32; }

}  // namespace

Queue::Queue(uint16_t id, QueueShared& shared)
    : id_(id), shared_(shared), doorbell_(make_eventfd(true)), wake_(make_eventfd(true)) {}

Queue::~Queue() { stop(); }

void Queue::renew_doorbell() { doorbell_ = make_eventfd(true); }

uint32_t Queue::read(uint32_t reg) const {
  switch (reg) {
    case KZ_Q_CTRL:
      return ctrl_;
    case KZ_Q_STATE:
      return state_;
    case KZ_Q_SQ_LO:
      return static_cast<uint32_t>(config_.sq);
    case KZ_Q_SQ_HI:
      return static_cast<uint32_t>(config_.sq >> 32);
    case KZ_Q_CQ_LO:
      return static_cast<uint32_t>(config_.cq);
    case KZ_Q_CQ_HI:
      return static_cast<uint32_t>(config_.cq >> 32);
    case KZ_Q_DBREC_LO:
      return static_cast<uint32_t>(config_.dbrec);
    case KZ_Q_DBREC_HI:
      return static_cast<uint32_t>(config_.dbrec >> 32);
    case KZ_Q_ORDER:
      return config_.order;
    case KZ_Q_VECTOR:
      return config_.vector;
    case KZ_Q_CONTEXT:
      return context_;
    case KZ_Q_SQ_HEAD:
      return sq_head_;
    case KZ_Q_CQ_TAIL:
      return cq_tail_;
    default:
      return 0;
  }
}

void Queue::write(uint32_t reg, uint32_t value) {
  if (reg == KZ_Q_CTRL) return control(value);
  if ((ctrl_ & KZ_QCTRL_ENABLE) != 0) return;  // the setup is fixed while the queue is enabled
  switch (reg) {
    case KZ_Q_SQ_LO:
      config_.sq = with_low(config_.sq, value);
      break;
    case KZ_Q_SQ_HI:
      config_.sq = with_high(config_.sq, value);
      break;
    case KZ_Q_CQ_LO:
      config_.cq = with_low(config_.cq, value);
      break;
    case KZ_Q_CQ_HI:
      config_.cq = with_high(config_.cq, value);
      break;
    case KZ_Q_DBREC_LO:
      config_.dbrec = with_low(config_.dbrec, value);
      break;
    case KZ_Q_DBREC_HI:
      config_.dbrec = with_high(config_.dbrec, value);
      break;
    case KZ_Q_ORDER:
      config_.order = value;
      break;
    case KZ_Q_VECTOR:
      config_.vector = value;
      break;
    case KZ_Q_CONTEXT:
      context_ = value;
      break;
    default:
      break;
  }
}

void Queue::control(uint32_t value) {
  if ((value & KZ_QCTRL_RESET) != 0) {
    reset();
    ctrl_ = value & KZ_QCTRL_IRQ;
    return;
  }
  bool was = (ctrl_ & KZ_QCTRL_ENABLE) != 0, now = (value & KZ_QCTRL_ENABLE) != 0;
  ctrl_ = value & (KZ_QCTRL_ENABLE | KZ_QCTRL_IRQ);
  if (now && !was) start();
  if (!now && was) stop();
}

std::optional<Queue::Config> Queue::checked_config() const {
  const Config& c = config_;
  bool good = c.order >= 1 && c.order <= QueueShared::max_order && c.sq % 4096 == 0 && c.cq % 4096 == 0 &&
              c.dbrec % 64 == 0 && c.vector < shared_.vectors &&
              (context_ == 0 || shared_.engine.context_exists(context_));
  return good ? std::optional(c) : std::nullopt;
}

void Queue::start() {
  stop();  // joins a worker that ended by itself
  auto config = checked_config();
  if (!config) return set_error(KZ_QERR_BAD_CONFIG);
  {
    std::scoped_lock lock(fetch_m_, m_, complete_m_);
    run_ = *config;
    pending_.clear();
    busy_ = false;
    why_ = Why::none;
    alive_ = true;
    last_end_ = {};
    slept_ = true;
    cancel_ = false;  // with the rest: a stop that comes from here on is not to be lost
    stop_ = false;
  }
  state_ = KZ_QSTATE_OFF;  // RUN once the device is ready
  thread_ = std::thread(&Queue::run, this);
}

void Queue::set_error(uint32_t error) {
  state_ = KZ_QSTATE_ERROR | error << 8;
  poke();
}

void Queue::poke() {
  {
    std::lock_guard lock(m_);
    changed_.notify_all();
  }
  signal_eventfd(wake_.get());
}

// Not through the doorbell's eventfd: the client holds that one too, and could make the write wait for ever.
void Queue::ring() {
  rung_ = true;
  signal_eventfd(wake_.get());
}

void Queue::request_stop() {
  {
    std::lock_guard lock(m_);
    stop_ = true;
    cancel_ = true;
    if (alive_ && worker_ != std::thread::id()) shared_.bus.remote().cancel(worker_);
    changed_.notify_all();
  }
  signal_eventfd(wake_.get());
}

bool Queue::wait_stopped(const Deadline& deadline) {
  constexpr std::chrono::nanoseconds patience = 1s;
  std::unique_lock lock(m_);
  auto ended = [&] { return !alive_; };
  if (changed_.wait_for(lock, std::min(deadline.left(), patience), ended)) return true;
  signal_shared_eventfd(doorbell_.get());  // a client that made it blocking may hold the worker in a read
  return changed_.wait_for(lock, deadline.left(), ended);
}

void Queue::stop() {
  if (!thread_.joinable()) return;
  request_stop();
  // The engine looks at its cancel flag between pieces of work, so this is short unless the model itself is
  // broken.
  if (!wait_stopped(Deadline(30s)))
    throw Error({Errc::timeout, "stop worker", "queue " + std::to_string(id_), "still busy after 30 s", {}});
  thread_.join();
  if ((state_ & 0xff) != KZ_QSTATE_ERROR) state_ = KZ_QSTATE_OFF;
}

void Queue::disable() {
  ctrl_ &= ~KZ_QCTRL_ENABLE;
  request_stop();
  wait_stopped(Deadline(30s));
  uint32_t run = KZ_QSTATE_RUN;
  state_.compare_exchange_strong(run, KZ_QSTATE_OFF);
}

void Queue::reset() {
  stop();
  std::scoped_lock lock(fetch_m_, m_, complete_m_);
  pending_.clear();
  sq_head_ = 0;
  cq_tail_ = 0;
  cq_head_ = 0;
  state_ = KZ_QSTATE_OFF;
  ctrl_ = 0;
}

void Queue::restore() {
  reset();
  config_ = Config{};
  context_ = 0;
}

void Queue::tick(std::chrono::milliseconds watchdog) {
  {
    std::lock_guard lock(m_);
    if (!busy_) return;
    if (seen_busy_ != busy_since_) {
      seen_busy_ = busy_since_;
      waited_before_ = waited_for_processor(worker_tid_);
    }
    // A command is not to blame for time in which the host had no processor for it.
    auto ran = Clock::now() - busy_since_;
    if (watchdog.count() > 0 && ran > watchdog) ran -= waited_for_processor(worker_tid_) - waited_before_;
    if (watchdog.count() > 0 && ran > watchdog && why_ == Why::none) {
      why_ = Why::timeout;
      cancel_ = true;
      shared_.bus.remote().cancel(worker_);
      changed_.notify_all();
    }
  }
  if (glance()) act_on_aborts();
}

bool Queue::abort(uint16_t cid, bool spread) {
  glance();
  std::lock_guard lock(m_);
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].cmd.cid != cid || pending_[i].aborted) continue;
    pending_[i].aborted = true;
    if (spread && i > 0) pending_[i - 1].aborted = true;
    if (spread && i + 1 < pending_.size()) pending_[i + 1].aborted = true;
    return true;
  }
  if (!busy_ || busy_cid_ != cid || why_ != Why::none) return false;
  why_ = Why::abort;
  cancel_ = true;
  shared_.bus.remote().cancel(worker_);
  if (spread && !pending_.empty()) pending_.front().aborted = true;
  changed_.notify_all();
  return true;
}

}  // namespace kz::softtpu
