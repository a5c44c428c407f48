// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/queue_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/session.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

// What kind of input this is, for Stall::after.
std::string kind_of(const Work& work) {
  if (std::holds_alternative<cmd::Raw>(work)) return "malformed";
  const auto* copy = std::get_if<cmd::Copy>(&work);
  const auto* fill = std::get_if<cmd::Fill>(&work);
  const auto* crc = std::get_if<cmd::Crc32c>(&work);
  const auto* march = std::get_if<cmd::March>(&work);
  const auto* matmul = std::get_if<cmd::Matmul>(&work);
  const auto* vector = std::get_if<cmd::Vector>(&work);
  const bool zero = (copy && copy->len == 0) || (fill && fill->len == 0) || (crc && crc->len == 0) ||
                    (march && march->len == 0) ||
                    (matmul && (matmul->m == 0 || matmul->n == 0 || matmul->k == 0)) ||
                    (vector && vector->n == 0);
  return zero ? "zero_size" : "valid";
}

}  // namespace

QueueGuard::QueueGuard(Device& device, std::unique_ptr<Queue> inner, bool judged)
    : device_(device),
      inner_(std::move(inner)),
      judged_(judged),
      exceptions_(std::uncaught_exceptions()),
      thread_(std::this_thread::get_id()) {
  Session::get().enlist(this);
}

QueueGuard::~QueueGuard() {
  auto& session = Session::get();
  try {
    if (std::uncaught_exceptions() > exceptions_ && !pending_.empty()) session.add_stall(stalled(0s));
  } catch (const std::exception&) {
    // The device is beyond questions; what is known without it has been said.
  }
  session.dismiss(this);
  if (judged_) session.add_audit({inner_->id(), inner_->audit()});
}

Ticket QueueGuard::submit(const Command& command, bool hold) {
  const Ticket ticket = inner_->submit(command, hold);
  std::string kind = kind_of(command.work);
  if (kind != "valid") last_kind_ = kind;
  pending_[ticket] = {name_of(command.work), std::move(kind)};
  return ticket;
}

std::vector<Completion> QueueGuard::note(std::vector<Completion> done) {
  consumed_ += done.size();
  if (!late_.empty()) {
    done.insert(done.begin(), late_.begin(), late_.end());
    late_.clear();
  }
  for (const auto& c : done) {
    auto it = pending_.find(c.ticket);
    if (it == pending_.end()) continue;
    if (it->second.kind == "valid") last_kind_ = "valid";
    pending_.erase(it);
  }
  return done;
}

std::vector<Completion> QueueGuard::wait(Deadline deadline) {
  const auto start = Clock::now();
  auto done = note(inner_->wait(deadline));
  if (judged_ && !done.empty() && Clock::now() - start > 50ms) give_up_on_interrupts();
  return done;
}

// Each lost interrupt costs its whole grace: after some the fact is clear, and the test would only run out of
// time.
void QueueGuard::give_up_on_interrupts() {
  constexpr uint64_t kEnough = 10;
  if (inner_->outstanding() > 0 || inner_->audit().completion_without_interrupt < kEnough) return;
  throw Error({.code = Errc::protocol,
               .operation = "wait for interrupts",
               .target = fmt::format("queue {}", id()),
               .detail = fmt::format("{} completions came without one",
                                     inner_->audit().completion_without_interrupt)});
}

std::vector<Completion> QueueGuard::reset(Deadline deadline) {
  Ticket last = base_;
  for (const auto& [ticket, what] : pending_) last = std::max(last, ticket);
  auto dropped = note(inner_->reset(deadline));
  base_ = last;
  consumed_ = 0;
  return dropped;
}

void QueueGuard::ask_registers(Stall& stall, Ticket ticket) {
  if (!device_.capabilities().has(Cap::raw_registers)) return;
  const uint32_t block = KZ_REG_QUEUE(inner_->id());
  const uint32_t head = device_.read_register(block + KZ_Q_SQ_HEAD);
  const uint32_t tail = device_.read_register(block + KZ_Q_CQ_TAIL);
  if (head == ~0u && tail == ~0u) return;
  stall.fetched_known = true;
  stall.fetched = static_cast<int32_t>(head - static_cast<uint32_t>(ticket - base_)) >= 0;
  stall.written = static_cast<int32_t>(tail - static_cast<uint32_t>(consumed_)) > 0 ? "yes" : "no";
}

// Takes completions, keeping them for later, until the ticket's is among them.
bool QueueGuard::collect_until(Ticket ticket, std::chrono::nanoseconds budget) {
  for (Deadline deadline(budget); !deadline.passed();) {
    auto done = inner_->wait(deadline);
    consumed_ += done.size();
    late_.insert(late_.end(), done.begin(), done.end());
    if (std::any_of(done.begin(), done.end(), [&](const auto& c) { return c.ticket == ticket; })) return true;
  }
  return false;
}

// How many commands the device says it has done, while no other queue of ours works: else it says nothing of
// ours.
std::optional<uint64_t> QueueGuard::done_alone() {
  if (!device_.capabilities().has(Cap::telemetry)) return std::nullopt;
  bool alone = true;
  Session::get().each_queue([&](QueueGuard& other) {
    if (&other != this && (other.thread_ != thread_ || other.outstanding() > 0)) alone = false;
  });
  return alone ? device_.telemetry().commands : std::nullopt;
}

void QueueGuard::try_nop_behind(Stall& stall) {
  if (inner_->outstanding() >= inner_->depth()) return;
  const auto before = done_alone();
  const Ticket nop = inner_->submit({cmd::Nop{}});
  stall.same_queue = collect_until(nop, 300ms) ? "complete" : "stuck";
  const auto after = done_alone();
  if (before && after) stall.counted = *after != *before ? "yes" : "no";
}

Stall QueueGuard::stalled(std::chrono::nanoseconds budget) {
  Stall stall;
  stall.queue = inner_->id();
  stall.budget = std::chrono::duration_cast<std::chrono::milliseconds>(budget);
  if (pending_.empty()) return stall;
  const Ticket ticket = pending_.begin()->first;
  const Sent& oldest = pending_.begin()->second;
  stall.command = oldest.name;
  stall.after = oldest.kind == "valid" ? last_kind_ : oldest.kind;
  ask_registers(stall, ticket);
  inner_->ring();
  stall.again_after_ring = collect_until(ticket, 300ms);
  if (!stall.again_after_ring) try_nop_behind(stall);
  // A completion that went astray shows in the books of the queue that it landed in.
  Session::get().each_queue([this](QueueGuard& other) {
    if (&other != this && other.thread_ == thread_) other.peek();
  });
  return stall;
}

void QueueGuard::peek() {
  auto done = inner_->poll();
  consumed_ += done.size();
  late_.insert(late_.end(), done.begin(), done.end());
}

std::unique_ptr<QueueGuard> open_queue(Device& device, Context& context, const QueueSpec& spec, bool judged) {
  return std::make_unique<QueueGuard>(device, context.open_queue(spec), judged);
}

std::unique_ptr<QueueGuard> open_queue(Context& context, const QueueSpec& spec, bool judged) {
  Device* device = Session::get().device;
  if (!device)
    throw Error({.code = Errc::usage, .operation = "open a queue", .detail = "outside a running test"});
  return open_queue(*device, context, spec, judged);
}

std::vector<Completion> finish(QueueGuard& queue, std::chrono::nanoseconds budget) {
  std::vector<Completion> all;
  Deadline deadline(budget);
  while (queue.outstanding() > 0) {
    auto done = queue.wait(deadline);
    all.insert(all.end(), done.begin(), done.end());
    if (done.empty() && deadline.passed()) queue.give_up(budget);
  }
  auto kept = queue.poll();  // what a diagnosis had put aside
  all.insert(all.end(), kept.begin(), kept.end());
  return all;
}

void QueueGuard::give_up(std::chrono::nanoseconds budget) {
  const Stall stall = stalled(budget);
  report_stall(device_, stall);
  throw Error({.code = Errc::timeout,
               .operation = "wait for " + stall.command,
               .target = fmt::format("queue {}", id()),
               .detail = fmt::format("no completion after {}; {}, {}", to_string(budget),
                                     stall.fetched ? "the device fetched it" : "the device did not fetch it",
                                     stall.again_after_ring ? "a second doorbell brought it"
                                                            : "a second doorbell did not help")});
}

Completion run_one(QueueGuard& queue, const Command& command, std::chrono::nanoseconds budget) {
  const Ticket ticket = queue.submit(command);
  for (Deadline deadline(budget);;) {
    for (const auto& done : queue.wait(deadline))
      if (done.ticket == ticket) return done;
    if (deadline.passed()) queue.give_up(budget);
  }
}

Completion run_good(QueueGuard& queue, const Command& command, std::chrono::nanoseconds budget) {
  const Completion done = run_one(queue, command, budget);
  if (done.status != Status::ok) {
    const std::string text = report_status(name_of(command.work), Status::ok, done.status);
    throw Error({.code = Errc::status,
                 .operation = name_of(command.work),
                 .target = fmt::format("queue {}", queue.id()),
                 .detail = text});
  }
  return done;
}

Completion expect_status(QueueGuard& queue, const Command& command, Status want, const std::string& what) {
  const Completion done = run_one(queue, command);
  if (done.status != want)
    ADD_FAILURE() << what << ": "
                  << report_status(name_of(command.work) + " (" + what + ")", want, done.status);
  return done;
}

}  // namespace kz::test
