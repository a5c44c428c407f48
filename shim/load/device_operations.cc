// SPDX-License-Identifier: GPL-2.0-or-later
// The operations of a worker: how each is made, and whether it ended right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "shim/base/error.h"
#include "shim/load/device_worker.h"

namespace kz::load {
namespace {

Cap cap_of(Op op, Dtype type) {
  switch (op) {
    case Op::copy_in:
    case Op::copy_out:
    case Op::copy_hbm:
      return Cap::dma;
    case Op::matmul:
      return type == Dtype::s8     ? Cap::matmul_s8
             : type == Dtype::bf16 ? Cap::matmul_bf16
             : type == Dtype::f16  ? Cap::matmul_f16
                                   : Cap::matmul_f32;
    case Op::vector:
      return Cap::vector;
    case Op::alloc:
      return Cap::hbm_alloc;
    case Op::telemetry:
      return Cap::telemetry;
    default:
      return Cap::queues;
  }
}

}  // namespace

void DeviceWorker::check_device() const {
  const Capabilities& caps = device_.capabilities();
  auto need = [&](Cap cap) {
    if (caps.has(cap)) return;
    auto find = [&](const auto& map) { return map.contains(cap) ? map.at(cap) : std::string(); };
    std::string why = find(caps.blocked).empty() ? find(caps.why_not) : find(caps.blocked);
    throw Error({Errc::unsupported, "load", device_.identity().uri,
                 fmt::format("it has no {}{}{}", kz::to_string(cap), why.empty() ? "" : ": ", why), "", 0});
  };
  need(Cap::queues);
  need(Cap::contexts);
  for (size_t o = 0; o < kOps; ++o)
    if (job_.mix[o] != 0) need(cap_of(static_cast<Op>(o), job_.dtype));
  const Limits& l = caps.limits;
  auto limit = [&](const char* key, uint64_t value, uint64_t most) {
    if (most == 0 || value <= most) return;
    throw Error({Errc::usage, "load", device_.identity().uri,
                 fmt::format("[{}]: {} {} is beyond the device's {}", job_.name, key, value, most), "", 0});
  };
  if (job_.copies()) limit("size", job_.size.most, l.max_transfer);
  if (job_.wants(Op::matmul)) limit("dim", job_.dim, l.max_dim);
  limit("entries", uint64_t{1} << job_.queue_order, l.max_depth);
  limit("queues", std::max(job_.queues, job_.threads), l.queues);
}

// Every place holds a payload before the load begins.
void DeviceWorker::fill_homes(const TableCache& tables) {
  for (uint32_t i = 0; i < homes_->size(); ++i) {
    tables.check_stop();
    auto& home = (*homes_)[i];
    home.tag = {sequence_++, home.addr.value, job_.seed, static_cast<uint32_t>(draw_size(job_.size))};
    if (job_.verify) write_payload(host_->bytes(0), home.tag);
    run_ok(*lanes_[0].queue, {cmd::Copy{host_->place(0), at(home.addr), home.tag.length}});
    home.known = true;
  }
}

uint64_t DeviceWorker::draw_size(const SizeRange& r) {
  if (r.least == r.most) return r.least;
  std::uniform_real_distribution<double> log(std::log2(static_cast<double>(r.least)),
                                             std::log2(static_cast<double>(r.most) + 1));
  return std::clamp(static_cast<uint64_t>(std::exp2(log(rng_))), r.least, r.most);
}

Op DeviceWorker::draw() {
  auto at = static_cast<unsigned>(rng_() % weight_);
  size_t o = 0;
  for (; at >= job_.mix[o]; ++o) at -= job_.mix[o];
  Op op = static_cast<Op>(o);
  if (op != Op::alloc) return op;
  bool full = blocks_.size() + allocs_under_way_ >= job_.blocks;
  return !blocks_.empty() && (full || rng_() % 3 == 0) ? Op::free : Op::alloc;
}

Command DeviceWorker::make(Op op, uint32_t slot) {
  Slot& s = slots_[slot];
  if (op == Op::copy_in) {
    s.home = homes_->take(rng_, false);
    auto& home = (*homes_)[s.home];
    home.tag = {sequence_++, home.addr.value, job_.seed, static_cast<uint32_t>(draw_size(job_.size))};
    s.length = home.tag.length;
    if (job_.verify) write_payload(host_->bytes(slot), home.tag);
    return {cmd::Copy{host_->place(slot), at(home.addr), s.length}};
  }
  if (op == Op::copy_out) {
    s.home = homes_->take(rng_, true);
    auto& home = (*homes_)[s.home];
    s.length = home.tag.length;
    if (job_.verify) mark_unwritten(host_->bytes(slot).first(s.length));
    return {cmd::Copy{at(home.addr), host_->place(slot), s.length}};
  }
  if (op == Op::copy_hbm) {
    s.from = homes_->take(rng_, true);
    s.home = homes_->take(rng_, false);
    auto &from = (*homes_)[s.from], &to = (*homes_)[s.home];
    to.tag = from.tag;
    s.length = from.tag.length;
    return {cmd::Copy{at(from.addr), at(to.addr), s.length}};
  }
  ++sequence_;
  if (op == Op::nop) return {cmd::Nop{}};
  const Calculation& c = op == Op::matmul ? *matmul_ : *vector_;
  s.variant = c.next_variant(slot);
  return c.command(slot, s.variant);
}

void DeviceWorker::start_by_clerk(Op op, uint32_t slot) {
  Clerk::Task task{.op = op, .slot = slot, .context = context_.get(), .inbox = &inbox_};
  if (op == Op::alloc) {
    task.size = {draw_size(job_.alloc_size)};
    ++allocs_under_way_;
  }
  if (op == Op::free) {
    std::swap(blocks_[rng_() % blocks_.size()], blocks_.back());
    task.block = std::move(blocks_.back());
    blocks_.pop_back();
    slots_[slot].freed = task.block->addr();
    slots_[slot].freed_bytes = task.block->size();
  }
  slots_[slot].by_clerk = true;
  ++by_clerk_;
  clerk_->submit(std::move(task));
}

void DeviceWorker::ended(Lane& lane, const Completion& c) {
  auto found = lane.slots.find(c.ticket);
  if (found == lane.slots.end()) return;  // the queue's audit counts what was never sent
  uint32_t slot = found->second;
  lane.slots.erase(found);
  if (c.status == Status::ok) return good(&lane, slot, c.seen);
  bad(slot, c.status);
}

void DeviceWorker::answered(ClerkAnswer& a) {
  --by_clerk_;
  Slot& s = slots_[a.slot];
  if (s.op == Op::alloc) --allocs_under_way_;
  if (a.error) {
    if (a.error->code() == Errc::timeout) {
      look_for_device();
      bump(book(s.op).lost);
      release(a.slot);
    }
    throw *a.error;
  }
  if (a.status != Status::ok) {
    note_finding(a.finding);
    return bad(a.slot, a.status);
  }
  if (s.op == Op::alloc) {
    bump(book(Op::alloc).verified);
    if (is_ours(*a.block))
      wrong(Op::alloc, fmt::format("HBM at {:#x} was given out twice", a.block->addr().value));
    blocks_.push_back(std::move(a.block));
  }
  good(nullptr, a.slot, a.seen);
}

// Does it meet memory that this context had already when it was allocated? A free that the clerk has not
// answered by now was asked for after it.
bool DeviceWorker::is_ours(const HbmBlock& block) const {
  auto meets = [&](HbmAddr addr, uint64_t size) {
    return block.addr() < addr + size && addr < block.addr() + block.size();
  };
  auto meets_block = [&](const HbmBlock& other) { return meets(other.addr(), other.size()); };
  return std::ranges::any_of(blocks_, [&](const auto& held) { return meets_block(*held); }) ||
         std::ranges::any_of(
             slots_,
             [&](const Slot& s) { return s.in_use && s.op == Op::free && meets(s.freed, s.freed_bytes); }) ||
         (homes_ && meets_block(homes_->memory())) || (matmul_ && meets_block(matmul_->memory())) ||
         (vector_ && meets_block(vector_->memory()));
}

void DeviceWorker::good(Lane* lane, uint32_t slot, Clock::time_point seen) {
  Slot& s = slots_[slot];
  OpAccount& b = book(s.op);
  bump(b.completed);
  bump(b.bytes, s.length);
  b.latency.record(static_cast<uint64_t>(std::max<int64_t>((seen - s.intended).count(), 0)));
  if (job_.verify && s.op == Op::check) look_at(slot);
  if (job_.verify && s.op == Op::copy_out) look_at(slot);
  if (job_.verify && (s.op == Op::matmul || s.op == Op::vector)) return check_result(*lane, slot);
  settle_homes(s, true);
  release(slot);
}

void DeviceWorker::bad(uint32_t slot, Status status) {
  Slot& s = slots_[slot];
  if (status == Status::lost) {
    bump(book(s.op).cancelled);
    bump(account_.cancelled_by[static_cast<size_t>(Cancel::reset)]);
  } else {
    bump(book(s.op).failed);
    bump(account_.failed_by[std::min<size_t>(static_cast<size_t>(status), kStatuses - 1)]);
  }
  settle_homes(s, false);
  release(slot);
}

// Places in HBM are idle again; what was to be written there is known only if it was.
void DeviceWorker::settle_homes(const Slot& s, bool ok) {
  if (s.op == Op::copy_in || s.op == Op::copy_hbm)
    (*homes_)[s.home].known = ok && (s.op == Op::copy_in || (*homes_)[s.from].known);
  if (s.op == Op::copy_in || s.op == Op::copy_out || s.op == Op::copy_hbm) homes_->give_back(s.home);
  if (s.op == Op::copy_hbm) homes_->give_back(s.from);
}

// Reads the result back; its check goes out in place of the operation, which has just made room.
void DeviceWorker::check_result(Lane& lane, uint32_t slot) {
  Slot& s = slots_[slot];
  const Calculation& c = s.op == Op::matmul ? *matmul_ : *vector_;
  s.checked = s.op;
  s.op = Op::check;
  s.length = c.result_bytes();
  mark_unwritten(host_->bytes(slot).first(s.length));
  s.intended = s.sent = Clock::now();
  bump(book(Op::check).sent);
  lane.slots[lane.queue->submit({cmd::Copy{at(c.result(slot)), host_->place(slot), s.length}}, true)] = slot;
  lane.held = true;
}

void DeviceWorker::check_home(Lane& lane, uint32_t home) {
  const auto& h = (*homes_)[home];
  uint32_t slot = idle_slots_.back();
  idle_slots_.pop_back();
  auto now = Clock::now();
  slots_[slot] = {.op = Op::check,
                  .intended = now,
                  .sent = now,
                  .home = home,
                  .length = h.tag.length,
                  .checked = Op::copy_in,
                  .in_use = true};
  mark_unwritten(host_->bytes(slot).first(h.tag.length));
  bump(book(Op::check).sent);
  lane.slots[lane.queue->submit({cmd::Copy{at(h.addr), host_->place(slot), h.tag.length}}, true)] = slot;
  lane.held = true;
}

void DeviceWorker::look_at(uint32_t slot) {
  Slot& s = slots_[slot];
  auto got = host_->bytes(slot).first(s.length);
  if (s.op == Op::check && s.checked != Op::copy_in) {
    bump(book(s.checked).verified);
    Calculation& c = s.checked == Op::matmul ? *matmul_ : *vector_;
    if (c.right(got, s.variant)) return c.note_seen(slot, s.variant);
    wrong(s.checked, fmt::format("{}: the result is wrong", to_string(s.checked)));
    show_wrong(s, c.result(slot), c.want(s.variant), got);
    return;
  }
  look_at_copy(slot);
}

void DeviceWorker::look_at_copy(uint32_t slot) {
  Slot& s = slots_[slot];
  auto got = host_->bytes(slot).first(s.length);
  auto& home = (*homes_)[s.home];
  if (!home.known) return;
  bump(book(s.op).verified);
  PayloadFault fault = check_payload(host_->bytes(slot), home.tag);
  if (fault == PayloadFault::none) return;
  wrong(s.op, fmt::format("copy-out of {} B at HBM {:#x}, payload {}: {}", s.length, home.addr.value,
                          home.tag.sequence, to_string(fault)));
  std::vector<std::byte> want(s.length);
  write_payload(want, home.tag);
  show_wrong(s, home.addr, want, got);
  home.known = false;
}

void DeviceWorker::show_wrong(const Slot& s, HbmAddr addr, std::span<const std::byte> want,
                              std::span<const std::byte> got) const {
  if (hooks_.wrong) hooks_.wrong({s.op == Op::check ? s.checked : s.op, addr, want, got});
}

void DeviceWorker::wrong(Op op, const std::string& what) {
  note_finding(what);
  bump(book(op).mismatched);
}

void DeviceWorker::note_finding(const std::string& what) {
  if (account_.finding[0] == '\0') what.copy(account_.finding, sizeof account_.finding - 1);
}

void DeviceWorker::release(uint32_t slot) {
  slots_[slot].in_use = false;
  idle_slots_.push_back(slot);
  ++ended_;
}

}  // namespace kz::load
