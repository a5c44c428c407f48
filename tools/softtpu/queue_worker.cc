// SPDX-License-Identifier: GPL-2.0-or-later
// The worker of a queue: waits for the doorbell, runs commands, paces and completes them.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/softtpu/queue.h"

namespace kz::softtpu {

namespace {

// Takes the count of an eventfd whose other holder may have made it blocking: must not wait.
void drain(int fd) {
  uint64_t n;
  iovec v{&n, sizeof n};
  if (::preadv2(fd, &v, 1, -1, RWF_NOWAIT) < 0 && errno == EOPNOTSUPP) drain_eventfd(fd);
}

int64_t steady_ns(Clock::time_point t) { return t.time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace

void Queue::run() {
  ::prctl(PR_SET_TIMERSLACK, 1);  // service times are kept to the microsecond
  {
    std::lock_guard lock(m_);
    worker_ = std::this_thread::get_id();
    worker_tid_ = ::gettid();
  }
  shared_.bus.remote().forgive(std::this_thread::get_id());  // thread ids are used again
  run_inner();
  std::lock_guard lock(m_);
  pending_.clear();
  busy_ = false;
  alive_ = false;
  worker_ = {};
  shared_.bus.remote().forgive(std::this_thread::get_id());
  changed_.notify_all();
}

void Queue::run_inner() {
  if (!wait_ready()) return;
  uint32_t off = KZ_QSTATE_OFF;
  state_.compare_exchange_strong(off, KZ_QSTATE_RUN);
  bool rung = false;
  while (!stopping()) {
    if (can_serve()) serve(rung);
    if (!stopping()) rung = wait_work();
  }
}

bool Queue::wait_ready() {
  std::unique_lock lock(m_);
  while (!stopping()) {
    int64_t at = shared_.ready_at, now = steady_ns(Clock::now());
    if (at <= now) return true;
    auto nap = std::chrono::nanoseconds(std::min<int64_t>(at - now, 10'000'000));
    changed_.wait_for(lock, nap);
  }
  return false;
}

bool Queue::can_serve() const {
  return (state_ & 0xff) == KZ_QSTATE_RUN && shared_.reachable && !shared_.engine.fatal();
}

bool Queue::wait_work() {
  slept_ = true;
  for (;;) {
    pollfd fds[2] = {{doorbell_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(fds, 2, 1000) < 0 && errno != EINTR) return false;
    if (stopping()) return false;
    bool woken = (fds[1].revents & POLLIN) != 0, rung = (fds[0].revents & POLLIN) != 0;
    if (woken) drain(wake_.get());
    if (rung) drain(doorbell_.get());
    rung |= rung_.exchange(false);
    if (rung && (!shared_.reachable || shared_.faults.due(Row::Q10) != nullptr)) rung = false;
    if (rung || woken) return rung;
  }
}

void Queue::wait_stop() {
  std::unique_lock lock(m_);
  changed_.wait(lock, [&] { return stopping(); });
}

bool Queue::sleep_until(Clock::time_point when) {
  std::unique_lock lock(m_);
  return !changed_.wait_until(lock, when, [&] { return stopping() || why_ != Why::none; });
}

void Queue::serve(bool rung) {
  do {
    if (fetch(rung)) act_on_aborts();
    rung = false;
    auto entry = next();
    if (!entry) return;
    run_one(std::move(*entry));
  } while (!stopping() && can_serve());
}

// The command to run now: the oldest. Fault Q06 lets a fenced one behind it go first.
std::optional<Queue::Entry> Queue::next() {
  std::unique_lock lock(m_);
  auto settled = [&] { return pending_.empty() || !pending_.front().abort_acting || stopping(); };
  changed_.wait(lock, settled);
  if (pending_.empty() || stopping()) return std::nullopt;
  auto fenced = [](const Entry& e) {
    return e.cmd.opcode == KZ_OP_FENCE || (e.cmd.flags & KZ_CMD_FENCE) != 0;
  };
  if (pending_.size() > 1 && !fenced(pending_[0]) && fenced(pending_[1]) && !pending_[1].aborted &&
      !pending_[1].abort_acting) {
    if (const Fault* f = shared_.faults.due(Row::Q06)) {
      Entry early = pending_[1];
      pending_.erase(pending_.begin() + 1);
      lock.unlock();
      run_one(early);
      sleep_until(Clock::now() + std::chrono::microseconds(f->uparam("delay_us")));
      lock.lock();
      if (stopping() || pending_.empty()) return std::nullopt;
    }
  }
  Entry entry = pending_.front();
  pending_.pop_front();
  return entry;
}

void Queue::begin(const Entry& entry) {
  std::lock_guard lock(m_);
  busy_ = true;
  busy_cid_ = entry.cmd.cid;
  busy_since_ = Clock::now();
  why_ = Why::none;
  cancel_ = stop_.load();
}

Queue::Why Queue::end() {
  std::lock_guard lock(m_);
  busy_ = false;
  Why why = why_;
  if (why != Why::none && !stop_) shared_.bus.remote().forgive(std::this_thread::get_id());
  why_ = Why::none;
  return why;
}

void Queue::spurious_interrupt() {
  if ((ctrl_ & KZ_QCTRL_IRQ) == 0 || shared_.faults.due(Row::Q02) == nullptr) return;
  shared_.irqs.raise(run_.vector);
  sleep_until(Clock::now() + std::chrono::microseconds(500));  // the host finds nothing
}

void Queue::run_one(Entry entry) {
  spurious_interrupt();
  if (const Fault* f = shared_.faults.active(Row::Q11);
      f != nullptr && (id_ + 1) % f->uparam("queue_mod") == 0)
    sleep_until(Clock::now() + std::chrono::milliseconds(20));
  auto start = Clock::now();
  begin(entry);
  Outcome outcome;
  if (entry.aborted) {
    outcome.status = KZ_ST_ABORTED;
  } else {
    outcome = dispatch(entry);
    pace(start);
  }
  Why why = end();
  if (stopping()) return;
  if (outcome.kind == Outcome::Kind::crash) {
    if (!shared_.engine.fatal()) shared_.engine.set_fatal(KZ_RR_FW_CRASH);
    return;
  }
  if (outcome.kind == Outcome::Kind::hang) return wait_stop();
  if (why != Why::none) {
    outcome = Outcome{};
    outcome.status = why == Why::abort ? KZ_ST_ABORTED : KZ_ST_TIMEOUT;
  }
  finish(entry.cmd, std::move(outcome));
}

void Queue::finish(const kz_cmd& cmd, Outcome outcome) {
  if (shared_.faults.due(Row::Q07) != nullptr) return wait_stop();
  if (outcome.kind == Outcome::Kind::silent || shared_.faults.due(Row::Q05) != nullptr) return;
  complete(cmd, outcome.status, outcome.result);
  if (outcome.kind == Outcome::Kind::twice || shared_.faults.due(Row::Q04) != nullptr)
    complete(cmd, outcome.status, outcome.result);
  if (outcome.kind != Outcome::Kind::early || !outcome.finish) return;
  sleep_until(Clock::now() + outcome.finish_delay);
  outcome.finish();
}

// A fixed service time ends that long after the one before, unless the queue was idle in between, so that
// lateness does not add up; else the engine says by how much its state (heat, faults) stretches the time that
// the work took.
void Queue::pace(Clock::time_point start) {
  if (shared_.service_time.count() > 0) {
    if (std::exchange(slept_, false)) last_end_ = std::max(start, last_end_);
    last_end_ += shared_.service_time;
    sleep_until(last_end_);
    return;
  }
  double factor = shared_.engine.slowdown();
  if (factor <= 1.0) return;
  auto now = Clock::now();
  auto extra = std::chrono::duration<double, std::nano>(now - start) * (factor - 1.0);
  sleep_until(now + std::chrono::nanoseconds(static_cast<int64_t>(std::min(extra.count(), 60e9))));
}

// Checks that the front does for its own two commands: flags, reserved field, and the rest of the payload.
std::optional<uint16_t> Queue::front_check(const kz_cmd& cmd) {
  bool clean = (cmd.flags & ~KZ_CMD_FLAGS) == 0 && cmd.rsvd == 0;
  size_t from = cmd.opcode == KZ_OP_ABORT ? offsetof(kz_abort, rsvd) : 0;
  clean = clean && std::all_of(cmd.u.raw + from, std::end(cmd.u.raw), [](uint8_t b) { return b == 0; });
  if (clean || shared_.faults.due(Row::Q15) != nullptr) return std::nullopt;
  return KZ_ST_BAD_FIELD;
}

Outcome Queue::dispatch(Entry& entry) {
  Outcome outcome;
  if (entry.cmd.opcode == KZ_OP_FENCE) {
    outcome.status =
        front_check(entry.cmd).value_or(KZ_ST_OK);  // all earlier ones are complete: one at a time
    return outcome;
  }
  if (entry.cmd.opcode == KZ_OP_ABORT) {
    if (!entry.abort_acted) act_on_abort(entry);
    outcome.status = entry.abort_status;
    outcome.result = entry.abort_result;
    return outcome;
  }
  return shared_.engine.execute(entry.cmd, {id_, context_, &cancel_});
}

}  // namespace kz::softtpu
