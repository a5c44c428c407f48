// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/queue.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/base/host_load.h"
#include "shim/dev/call.h"
#include "shim/tpu/encode.h"
#include "shim/uapi/kz_regs.h"

namespace kz::dev {
namespace {

// A wait this long without result is worth a look at the device, and again so often.
constexpr auto worth_a_look = 50ms;
constexpr auto look_every = 250ms;
// The driver takes no command while it resets the queue; one that it refuses for longer is lost.
constexpr auto refusals = 5s;
constexpr int refusal_pause_ms = 1;
// In which the driver answers all commands of a queue that was reset or closed.
constexpr auto settle = 2s;
// In which the driver makes up its mind whether an interrupt is late or lost.
constexpr auto interrupt_grace = 600ms;  // of a quiet host
constexpr auto update_slice = 1ms;
constexpr auto ask_every = 100us;  // where nothing tells that there are answers

Ended update_firmware(std::shared_ptr<Core> core, std::span<std::byte> image, uint64_t tag) {
  kz_ioc_fw a{};
  a.addr = reinterpret_cast<uint64_t>(image.data());
  a.len = image.size();
  int rc = call(core->fd(), KZ_IOC_FW_UPDATE, a);
  if (rc < 0 && a.status != KZ_ST_OK) rc = static_cast<int>(a.status);
  if (rc == -EINVAL || rc == -EFBIG) rc = KZ_ST_BAD_LENGTH;  // shorter than a header, longer than any image
  return {tag, rc, 0};
}

}  // namespace

std::unique_ptr<Queue> open_dev_queue(const std::shared_ptr<Core>& core,
                                      const std::shared_ptr<ContextState>& context, const QueueSpec& spec) {
  const kz_info& info = core->node().info;
  if (spec.vector)
    throw Error({Errc::unsupported, "open", "a queue",
                 fmt::format("the driver chooses its vector, not {}", *spec.vector), "", 0});
  if (spec.order < 1 || spec.order > info.max_order)
    throw Error({Errc::usage, "open", "a queue",
                 fmt::format("2^{} entries; the driver takes 2^1 to 2^{}", spec.order, info.max_order), "",
                 0});
  uint64_t epoch = core->epoch();
  kz_ioc_queue a{};
  a.flags = spec.interrupts ? 0 : KZ_QUEUE_POLLED;
  a.ctx = context->id;
  a.order = spec.order;
  int rc = call(core->fd(), KZ_IOC_QUEUE_CREATE, a);
  if (rc == -ENOSPC)
    throw Error({Errc::busy, "open", "a queue", "all queue pairs of the device are in use", "close one first",
                 ENOSPC});
  if (rc < 0) throw_call("open a queue in", fmt::format("context {}", context->id), -rc);
  auto handle = std::make_shared<QueueHandle>(core->fd(), a.queue);
  {
    std::lock_guard lock(context->mutex);
    std::erase_if(context->queues, [](const auto& q) { return q.expired(); });
    context->queues.push_back(handle);
  }
  try {
    return std::make_unique<DevQueue>(core, context, handle, spec, epoch);
  } catch (...) {
    handle->close();
    throw;
  }
}

DevQueue::DevQueue(std::shared_ptr<Core> core, std::shared_ptr<ContextState> context,
                   std::shared_ptr<QueueHandle> handle, const QueueSpec& spec, uint64_t epoch)
    : core_(std::move(core)),
      context_(std::move(context)),
      handle_(std::move(handle)),
      epoch_(epoch),
      slots_(size_t{1} << spec.order) {
  for (uint32_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
  bool by_ring = spec.interrupts && core_->why_no_uring().empty();
  way_ = by_ring ? make_uring_way(core_->fd(), handle_->id(), depth())
                 : make_ioctl_way(core_->fd(), handle_->id(), depth());
}

DevQueue::~DevQueue() {
  handle_->close();  // the commands in it end
}

bool DevQueue::dead() const { return !handle_->open() || epoch_ != core_->epoch(); }

void DevQueue::check_usable(const char* what) const {
  std::string target = fmt::format("queue {} of {}", id(), core_->node().path);
  core_->check_there(what, target);
  if (dead())
    throw Error({Errc::gone, what, target, "the device was reset, or its context ended, since it was opened",
                 "open a new context and queue", 0});
}

Ticket DevQueue::submit(const Command& command, bool hold) {
  check_usable("submit to");
  if (std::holds_alternative<cmd::Raw>(command.work))
    throw Error({Errc::unsupported, "submit to", fmt::format("queue {}", id()),
                 "the driver rewrites commands: none reaches the device as it is", "", 0});
  if (free_.empty())
    throw Error({Errc::busy, "submit to", fmt::format("queue {}", id()),
                 fmt::format("all {} entries are in use", depth()), "collect completions first", 0});
  kz_cmd encoded = tpu::encode(command);
  uint32_t at = free_.front();
  free_.pop_front();
  encoded.cid = static_cast<uint16_t>(at);
  slots_[at] = {next_ticket_++, encoded, Clock::now(), {}};
  ++outstanding_;
  ++audit_.submitted;
  Ticket ticket = slots_[at].ticket;
  if (const auto* update = std::get_if<cmd::FwUpdate>(&command.work))
    start_update(*update, at);
  else
    held_.push_back(at);
  if (!hold) ring();
  return ticket;
}

// The driver takes images by a call of their own, from host memory, and only from who may use context 0.
void DevQueue::start_update(const cmd::FwUpdate& update, uint32_t slot) {
  uint64_t tag = tag_of(slots_[slot].ticket, slot);
  if (context_->id != KZ_CTX_ROOT) return ended_.push_back({tag, KZ_ST_DENIED, 0});
  auto image = core_->bytes_at(update.image, update.len);
  if (image.empty()) return ended_.push_back({tag, update.len == 0 ? KZ_ST_BAD_LENGTH : KZ_ST_DMA_FAULT, 0});
  updates_.push_back(std::async(std::launch::async, update_firmware, core_, image, tag));
}

void DevQueue::take_updates(std::vector<Completion>& out) {
  std::erase_if(updates_, [&](std::future<Ended>& update) {
    if (update.wait_for(0s) != std::future_status::ready) return false;
    take(update.get(), out);
    return true;
  });
}

void DevQueue::hand_over() {
  if (held_.empty()) return;
  for (uint32_t slot : held_) way_->put(slots_[slot].command, tag_of(slots_[slot].ticket, slot));
  held_.clear();
  way_->flush(ended_);
}

void DevQueue::ring() {
  check_usable("ring");
  hand_over();
}

void DevQueue::overfill(const Command&) {
  throw Error({Errc::unsupported, "overfill", fmt::format("queue {}", id()),
               "the driver keeps the ring: it holds as many commands as it has entries", "", 0});
}

uint16_t DevQueue::cid(Ticket ticket) const {
  auto it = std::ranges::find(slots_, ticket, &Slot::ticket);
  if (ticket == 0 || it == slots_.end())
    throw Error({Errc::not_found, "find", fmt::format("ticket {} of queue {}", ticket, id()),
                 "it is not outstanding", "", 0});
  return static_cast<uint16_t>(it - slots_.begin());
}

void DevQueue::vacate(uint32_t slot) {
  slots_[slot].ticket = 0;
  free_.push_back(slot);
  --outstanding_;
}

void DevQueue::answer(uint32_t slot, Status status, uint64_t result, std::vector<Completion>& out) {
  Slot& s = slots_[slot];
  out.push_back({s.ticket, status, result, s.submitted, Clock::now()});
  vacate(slot);
  ++(status == Status::lost ? audit_.dropped : audit_.completed);
}

void DevQueue::take(const Ended& ended, std::vector<Completion>& out) {
  uint32_t slot = slot_of(ended.tag);
  if (slot >= slots_.size() || slots_[slot].ticket != ticket_of(ended.tag)) {
    ++(ticket_of(ended.tag) < next_ticket_ ? twice_ : unknown_);
    return;
  }
  Outcome outcome = outcome_of(ended.res);
  switch (outcome.kind) {
    case Outcome::Kind::completed:
      if (static_cast<uint16_t>(outcome.status) > KZ_ST_INTERNAL) ++audit_.reserved_set;
      return answer(slot, outcome.status, ended.result, out);
    case Outcome::Kind::lost:
      return answer(slot, Status::lost, 0, out);
    case Outcome::Kind::again:
    case Outcome::Kind::refused:
      return refused(slot, outcome.kind == Outcome::Kind::again ? 0 : outcome.error, out);
  }
}

// Offered again, unless the driver will never take it, or has not for long.
void DevQueue::refused(uint32_t slot, int error, std::vector<Completion>& out) {
  Slot& s = slots_[slot];
  if (error != 0) {
    std::string name = fmt::format("opcode {:#x} to queue {}", s.command.opcode, id());
    vacate(slot);
    ++audit_.dropped;
    throw_call("submit", name, error);
  }
  auto now = Clock::now();
  if (s.first_refusal == Clock::time_point{}) s.first_refusal = now;
  if (now - s.first_refusal > refusals) return answer(slot, Status::lost, 0, out);
  // In front of what was submitted after it.
  held_.insert(std::ranges::upper_bound(held_, s.ticket, {}, [&](uint32_t i) { return slots_[i].ticket; }),
               slot);
}

void DevQueue::take_all(std::vector<Completion>& out) {
  way_->peek(ended_);
  auto these = std::exchange(ended_, {});
  for (auto it = these.begin(); it != these.end(); ++it) try {
      take(*it, out);
    } catch (...) {
      ended_.insert(ended_.begin(), it + 1, these.end());
      if (out.empty()) throw;
      if (!failure_) failure_ = std::current_exception();
      return;
    }
  take_updates(out);
}

void DevQueue::wait_for_some(const Deadline& deadline, std::vector<Completion>& out) {
  bool offered_before = !held_.empty() && slots_[held_.front()].first_refusal != Clock::time_point{};
  if (offered_before) ::poll(nullptr, 0, refusal_pause_ms);
  hand_over();
  take_all(out);
  if (!out.empty()) return;
  auto slice =
      std::min<std::chrono::nanoseconds>(deadline.left(), updates_.empty() ? look_every : update_slice);
  if (held_.empty()) way_->wait(Deadline(slice), ended_);
  take_all(out);
}

// Commands that nobody will answer any more.
void DevQueue::give_up_rest(std::vector<Completion>& out) {
  std::vector<uint32_t> rest;
  for (uint32_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].ticket != 0) rest.push_back(i);
  std::ranges::sort(rest, {}, [&](uint32_t i) { return slots_[i].ticket; });
  held_.clear();
  std::ranges::move(updates_, std::back_inserter(given_up_));
  updates_.clear();
  for (uint32_t i : rest) answer(i, Status::lost, 0, out);
}

// Everything outstanding: what was handed over is answered by the driver, the rest was never begun.
std::vector<Completion> DevQueue::drain(const Deadline& deadline) {
  std::vector<Completion> out;
  for (uint32_t slot : std::exchange(held_, {})) answer(slot, Status::lost, 0, out);
  take_all(out);
  while (outstanding_ > 0 && !(way_->over() && updates_.empty()) && !deadline.passed()) {
    auto slice = std::min<std::chrono::nanoseconds>(deadline.left(), updates_.empty() ? 50ms : update_slice);
    way_->wait(Deadline(slice), ended_);
    take_all(out);
    for (uint32_t slot : std::exchange(held_, {})) answer(slot, Status::lost, 0, out);
  }
  give_up_rest(out);
  return out;
}

void DevQueue::throw_kept() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

Queue::Signal DevQueue::signal() const {
  // What the driver refused is to be offered again meanwhile.
  if (int fd = way_->ready_fd(); fd >= 0) return {fd, std::chrono::milliseconds(refusal_pause_ms)};
  return {-1, ask_every};
}

void DevQueue::take_signal() {
  if (!dead()) hand_over();  // what was refused
}

std::vector<Completion> DevQueue::poll() {
  throw_kept();
  std::vector<Completion> out;
  if (dead() && outstanding_ > 0) return drain(Deadline(settle));
  take_all(out);
  if (out.empty()) check_usable("poll");
  return out;
}

std::vector<Completion> DevQueue::wait(Deadline deadline) {
  throw_kept();
  if (dead() && outstanding_ > 0) return drain(Deadline(settle));
  std::vector<Completion> out;
  auto next_look = std::chrono::nanoseconds(look_every);
  do {
    wait_for_some(deadline, out);
    if (!out.empty()) break;
    if (dead() && outstanding_ > 0) return drain(Deadline(settle));
    check_usable("wait on");
    if (deadline.elapsed() < next_look) continue;
    next_look = deadline.elapsed() + look_every;
    look_for_device();
  } while (!deadline.passed());
  if (out.empty() && deadline.budget() >= worth_a_look) look_for_device();
  return out;
}

// Does the silence have a reason? A device that is lost reads all ones.
void DevQueue::look_for_device() const {
  kz_info info{};
  if (core_->info(info) != 0 || info.state != KZ_STATE_LIVE) return;  // the driver is at it
  kz_ioc_reg a{};
  a.flags = KZ_CALL_NOWAIT;
  a.offset = KZ_REG_MAGIC;
  if (call(core_->fd(), KZ_IOC_REG_READ, a) != 0 || a.value == KZ_MAGIC) return;
  throw Error({Errc::gone, "wait on", fmt::format("queue {} of {}", id(), core_->node().path),
               a.value == ~0u ? "registers read all ones" : fmt::format("MAGIC reads {:#x}", a.value),
               "check power and link of the device", 0});
}

std::vector<Completion> DevQueue::reset(Deadline deadline) {
  if (dead()) return drain(Deadline(settle));
  check_usable("reset");
  kz_ioc_queue a{};
  a.queue = handle_->id();
  int rc = call_by(deadline, core_->fd(), KZ_IOC_QUEUE_RESET, a);
  if (rc == -EAGAIN)
    throw Error(
        {Errc::timeout, "reset", fmt::format("queue {}", id()),
         fmt::format("the driver is still resetting the device after {}", to_string(deadline.elapsed())),
         "see the kernel log", 0});
  if (rc < 0 && rc != -ESTALE) throw_call("reset", fmt::format("queue {}", id()), -rc);
  return drain(Deadline(std::max<std::chrono::nanoseconds>(deadline.left(), settle)));
}

// The driver's books. A command in pieces has several completions of the device, each with an interrupt;
// interrupts that follow each other closely are merged on the way, so there may be fewer.
const QueueAudit& DevQueue::audit() const {
  kz_ioc_queue_stat s;
  seen_within(interrupt_grace, [&] {
    s = handle_->books();
    return s.interrupts_owed == 0 || !handle_->open();
  });
  audit_.interrupts = s.interrupts;
  audit_.completion_without_interrupt = s.interrupts_lost + s.interrupts_owed;
  audit_.interrupt_without_completion = s.interrupts > s.entries ? s.interrupts - s.entries : 0;
  audit_.duplicate_completion = s.repeated_cid + twice_;
  audit_.unknown_completion = s.unknown_cid + unknown_;
  audit_.wrong_queue = s.wrong_queue;
  audit_.bad_sq_head = s.bad_sq_head;
  return audit_;
}

}  // namespace kz::dev
