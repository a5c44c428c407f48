// SPDX-License-Identifier: GPL-2.0-or-later
// The loop of a worker: when to send, when to wait, when to give up.
#include "shim/load/device_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>

#include <algorithm>

#include "shim/base/error.h"

namespace kz::load {
namespace {

constexpr unsigned clerk_slots = 4;  // calls of the device itself that wait at once
constexpr auto longest_rest = 20ms;  // how soon a stop is noticed
constexpr auto look_every = 250ms;   // at operations that take too long, and at a device that is silent
constexpr auto short_rest = 500us;   // where the clerk may answer meanwhile

void doze(std::chrono::nanoseconds t) {
  timespec ts{t.count() / 1'000'000'000, t.count() % 1'000'000'000};
  ::ppoll(nullptr, 0, &ts, nullptr);
}

}  // namespace

DeviceWorker::DeviceWorker(const Job& job, const WorkerId& id, Device& device, Clerk* clerk, Ledger& ledger,
                           size_t index, const Hooks& hooks)
    : job_(job),
      id_(id),
      device_(device),
      clerk_(clerk),
      ledger_(ledger),
      index_(index),
      account_(ledger.account(index)),
      hooks_(hooks),
      rng_(job.seed * 0x9e3779b97f4a7c15u + index),
      due_(job, id),
      next_(due_) {
  for (unsigned w : job_.mix) weight_ += w;
}

DeviceWorker::~DeviceWorker() { finish(); }

void DeviceWorker::prepare(TableCache& tables) {
  tables.check_stop();
  check_device();
  context_ = device_.create_context();
  // The job's queues, shared out: the first threads get one more where it does not come out even.
  unsigned queues = std::max(job_.queues, job_.threads);
  unsigned mine = queues / job_.threads + (id_.thread < queues % job_.threads ? 1 : 0);
  for (unsigned q = 0; q < mine; ++q) {
    lanes_.emplace_back();
    lanes_.back().queue =
        context_->open_queue({.order = job_.queue_order, .vector = {}, .interrupts = job_.interrupts});
  }
  unsigned slots = mine * job_.limit() + (clerk_ != nullptr ? clerk_slots : 0);
  slots_.resize(slots);
  for (uint32_t s = slots; s-- > 0;) idle_slots_.push_back(s);
  Queue& first = *lanes_[0].queue;
  if (job_.wants(Op::matmul))
    matmul_ = std::make_unique<Calculation>(Op::matmul, job_, device_, *context_, first, slots, tables);
  if (job_.wants(Op::vector))
    vector_ = std::make_unique<Calculation>(Op::vector, job_, device_, *context_, first, slots, tables);
  uint64_t piece = job_.copies() ? job_.size.most : 64;
  for (const auto* c : {matmul_.get(), vector_.get()})
    if (c != nullptr) piece = std::max(piece, c->result_bytes());
  host_ = std::make_unique<HostSlots>(device_, slots, piece);
  if (job_.copies()) {
    homes_ = std::make_unique<Homes>(*context_, 2 * slots + 2, job_.size.most);
    fill_homes(tables);
  }
  blocks_.reserve(job_.blocks);
}

void DeviceWorker::run(Clock::time_point start) noexcept {
  ::prctl(PR_SET_TIMERSLACK, 1);  // starts are kept to the microsecond
  try {
    loop(start);
    ledger_.set_state(index_, WorkerAccount::ended);
  } catch (const Error& e) {
    give_up(e.code() == Errc::gone ? Cancel::device_gone : Cancel::stopped);
    ledger_.break_off(index_, e);
  } catch (const std::exception& e) {
    give_up(Cancel::stopped);
    ledger_.break_off(index_, Error({Errc::io, "run", "load", e.what(), "", 0}));
  }
}

void DeviceWorker::loop(Clock::time_point start) {
  start_ = start;
  end_ = start + job_.time;
  while (Clock::now() < start && ledger_.stop() == 0)
    doze(std::clamp<std::chrono::nanoseconds>(start - Clock::now(), 1us, longest_rest));
  ledger_.set_state(index_, WorkerAccount::running);
  auto now = Clock::now();
  account_.began_ns = static_cast<uint64_t>(start.time_since_epoch().count());
  for (;; now = Clock::now()) {
    collect();
    sending_ = may_send(now);
    bool sent = sending_ && send(now);
    if (!sending_ && !read_back(now) && under_way() == 0) break;
    if (ledger_.stop() > 1) {
      give_up(Cancel::stopped);
      break;
    }
    look_for_lost(now);
    if (!sent) rest(now);
  }
  account_.ended_ns = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
}

bool DeviceWorker::may_send(Clock::time_point now) {
  if (!sending_) return false;
  bool enough = job_.count != 0 && started_ >= job_.count;
  // What was due before the end is started after it, too: for as long as an operation may take.
  bool due = job_.open_loop && start_ + next_.next() < end_;
  bool over = now >= end_ && (!due || now >= end_ + job_.timeout);
  if (!enough && !over && ledger_.stop() == 0) return true;
  if (job_.open_loop) give_up_backlog(now);
  return false;
}

unsigned DeviceWorker::under_way() const { return static_cast<unsigned>(slots_.size() - idle_slots_.size()); }

// Starts what is due, a batch at most, and rings. True when there may be more to start at once.
bool DeviceWorker::send(Clock::time_point now) {
  unsigned n = 0;
  blocked_ = false;
  for (; n < job_.batch && (job_.count == 0 || started_ < job_.count); ++n) {
    auto intended = job_.open_loop ? start_ + next_.next() : now;
    if (job_.open_loop && (intended > now || intended >= end_)) break;
    if (!send_one(intended, now)) {
      blocked_ = true;
      if (job_.open_loop && std::exchange(full_at_, next_.index()) != next_.index()) bump(account_.ring_full);
      break;
    }
    if (job_.open_loop) next_.advance();
  }
  if (job_.open_loop) note_backlog(now);
  ring_held();
  return n == job_.batch;
}

void DeviceWorker::ring_held() {
  for (Lane& lane : lanes_)
    if (std::exchange(lane.held, false)) lane.queue->ring();
}

// At the end everything that a place should hold is read, an operation each: what no copy-out came by would
// go unseen. True while there is more to read.
bool DeviceWorker::read_back(Clock::time_point now) {
  if (!job_.verify || !homes_ || ledger_.stop() != 0) return false;
  if (read_back_until_ == Clock::time_point{}) {
    if (under_way() > 0) return true;  // places are in use
    read_back_until_ = now + job_.timeout;
  }
  if (now >= read_back_until_) return false;
  for (; next_home_ < homes_->size(); ++next_home_) {
    if (!(*homes_)[next_home_].known) continue;
    Lane* lane = free_lane();
    if (lane == nullptr || idle_slots_.empty()) break;
    check_home(*lane, next_home_);
  }
  ring_held();
  return next_home_ < homes_->size();
}

DeviceWorker::Lane* DeviceWorker::free_lane() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[next_lane_++ % lanes_.size()];
    if (lane.queue->outstanding() < job_.limit() && lane.slots.size() < job_.limit()) return &lane;
  }
  return nullptr;
}

// False when there is no room for it.
bool DeviceWorker::send_one(Clock::time_point intended, Clock::time_point now) {
  Lane* lane = free_lane();
  // An operation is drawn only when there is room for any: what is kept waiting must not depend on the draw.
  if (lane == nullptr || idle_slots_.empty() || (clerk_ != nullptr && by_clerk_ >= clerk_slots)) return false;
  Op op = draw();
  uint32_t index = idle_slots_.back();
  idle_slots_.pop_back();
  Slot& s = slots_[index];
  s = {.op = op, .intended = intended, .sent = now, .in_use = true};
  bool by_device = op != Op::alloc && op != Op::free && op != Op::telemetry;
  Command command = by_device ? make(op, index) : Command{};
  if (job_.open_loop) {
    auto late = (Clock::now() - intended).count();
    if (late > job_.late.count()) bump(account_.late);
    raise_to(account_.late_max_ns, static_cast<uint64_t>(std::max<int64_t>(late, 0)));
  }
  bump(book(op).sent);  // before it is: a process that dies here still has it in its books
  ++started_;
  if (by_device) {
    lane->slots[lane->queue->submit(command, true)] = index;
    lane->held = true;
  } else {
    start_by_clerk(op, index);
  }
  return true;
}

void DeviceWorker::note_backlog(Clock::time_point now) {
  uint64_t most = job_.count != 0 ? job_.count : UINT64_MAX;
  while (due_.index() < most && start_ + due_.next() <= now && start_ + due_.next() < end_) due_.advance();
  if (due_.index() > next_.index()) raise_to(account_.backlog_max, due_.index() - next_.index());
}

// What was due and will not be started any more. It has waited until now, and would have taken longer: left
// out of the latencies, a device that stalls at the end would look better than one that stalls before.
void DeviceWorker::give_up_backlog(Clock::time_point now) {
  note_backlog(now);
  for (; next_.index() < due_.index(); next_.advance()) {
    bump(account_.not_started);
    book(draw()).latency.record(static_cast<uint64_t>((now - start_ - next_.next()).count()));
  }
}

// Until the next start is due, or something may have completed.
void DeviceWorker::rest(Clock::time_point now) {
  std::chrono::nanoseconds budget = longest_rest;
  if (sending_ && !blocked_)
    budget = std::min<std::chrono::nanoseconds>(budget, job_.open_loop ? start_ + next_.next() - now : 0ns);
  busy_.clear();
  Lane* only = nullptr;
  for (Lane& lane : lanes_)
    if (lane.queue->outstanding() > 0) busy_.push_back((only = &lane)->queue.get());
  // The clerk's answers have the time they came; they only must not wait long for the books.
  if (!busy_.empty() && by_clerk_ > 0) budget = std::min<std::chrono::nanoseconds>(budget, short_rest);
  if (budget <= 0ns) return;
  if (busy_.empty() && by_clerk_ > 0) return inbox_.wait(budget);
  if (busy_.empty()) return doze(budget);
  if (busy_.size() > 1) return wait_for_any(busy_, budget);  // collect() takes what is there
  for (const Completion& c : only->queue->wait(Deadline(budget))) ended(*only, c);
}

void DeviceWorker::collect() {
  for (Lane& lane : lanes_) {
    if (lane.queue->outstanding() > 0)
      for (const Completion& c : lane.queue->poll()) ended(lane, c);
    if (std::exchange(lane.held, false)) lane.queue->ring();  // checks
  }
  if (by_clerk_ > 0)
    for (ClerkAnswer& a : inbox_.take()) answered(a);
}

// Silence may have a reason: of a device that is lost no operation is. Throws Error(gone).
void DeviceWorker::look_for_device() const {
  for (const Lane& lane : lanes_) lane.queue->look_for_device();
}

// An operation that is out for longer than it may take is lost, whatever else completes.
void DeviceWorker::look_for_lost(Clock::time_point now) {
  if (now < next_look_) return;
  next_look_ = now + std::min<std::chrono::nanoseconds>(job_.timeout / 4, look_every);
  bool overdue =
      std::ranges::any_of(slots_, [&](const Slot& s) { return s.in_use && now - s.sent >= job_.timeout; });
  bool silent = under_way() > 0 && ended_ == ended_before_;
  ended_before_ = ended_;
  if (overdue || silent) look_for_device();
  if (!overdue) return;
  std::string first;
  for (Slot& s : slots_) {
    if (!s.in_use || now - s.sent < job_.timeout) continue;
    if (first.empty()) first = to_string(s.op);
    bump(book(s.op).lost);
    s.in_use = false;
  }
  give_up(Cancel::stopped);  // what was sent later and is not overdue
  throw Error({Errc::timeout, "run", fmt::format("job {}", job_.name),
               fmt::format("no answer to {} for {}", first, kz::to_string(job_.timeout)),
               "see what the device does with 'kangzao run', or raise timeout", 0});
}

// Everything that is still outstanding ends here.
void DeviceWorker::give_up(Cancel why) {
  for (Slot& s : slots_) {
    if (!s.in_use) continue;
    bump(book(s.op).cancelled);
    bump(account_.cancelled_by[static_cast<size_t>(why)]);
    s.in_use = false;
  }
  for (Lane& lane : lanes_) lane.slots.clear();
  if (job_.open_loop && std::exchange(sending_, false)) give_up_backlog(Clock::now());
  account_.ended_ns = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
}

void DeviceWorker::finish() noexcept {
  for (Lane& lane : lanes_) {
    try {
      const QueueAudit& a = lane.queue->audit();
      if (hooks_.audit) hooks_.audit(lane.queue->id(), a);
      account_.queue_faults += a.completion_without_interrupt + a.interrupt_without_completion +
                               a.duplicate_completion + a.unknown_completion + a.wrong_queue + a.bad_sq_head +
                               a.bad_phase + a.reserved_set;
    } catch (const std::exception&) {
      // A device that is gone has no books; that it is gone is noted.
    }
  }
  lanes_.clear();
  for (ClerkAnswer& a : inbox_.take()) blocks_.push_back(std::move(a.block));
  blocks_.clear();
  matmul_.reset();
  vector_.reset();
  homes_.reset();
  host_.reset();
  context_.reset();
}

}  // namespace kz::load
