// SPDX-License-Identifier: GPL-2.0-or-later
// A device made by hand for tests of the load engine: its every delay and fault is chosen.
#pragma once

#include <climits>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/error.h"
#include "shim/load/engine.h"
#include "shim/load/report.h"
#include "shim/status_error.h"
#include "shim/uapi/kz_regs.h"

namespace kz::load {

using HandMemory = std::vector<std::shared_ptr<std::vector<std::byte>>>;

// Completes commands in order, each `service` after the later of its submission and the end of the one
// before; during a stall nothing completes. Memory is the process's own; HBM addresses are pointers.
struct HandMade {
  std::chrono::nanoseconds service = 100us;
  std::chrono::nanoseconds slow_service{0};  // of every second queue of a context, where it is not 0
  std::chrono::nanoseconds stall_from{0}, stall_for{0};                          // since the first submission
  std::function<Status(uint64_t)> status = [](uint64_t) { return Status::ok; };  // of the n-th command
  std::function<bool(uint64_t)> swallow = [](uint64_t) { return false; };
  std::function<bool(uint64_t)> spoil = [](uint64_t) { return false; };  // its copy flips a bit
  // How much of its result the n-th command writes; all but the middle is the case of a lost piece.
  enum class Part { all, none, all_but_the_middle };
  std::function<Part(uint64_t, const Command&)> part = [](uint64_t, const Command&) { return Part::all; };
  uint64_t gone_after = UINT64_MAX;
  unsigned sound_contexts = 0;         // the first so many swallow and spoil nothing
  uint64_t silent_after = UINT64_MAX;  // nothing is answered from then on, and a look finds the device lost
  // Every allocation of a context from this one on, counted from 0, gets the memory of another.
  unsigned twins_from = UINT_MAX, twin_of = 0;
  // Where it is there, allocations of every context get the memory that those of the one before had.
  std::shared_ptr<HandMemory> memory;
  Status alloc_status = Status::ok;  // of the device, from the third allocation of a context on
  bool telemetry_lies = false;       // it reads all ones, registers do not
  bool all_ones = false;             // registers do, too
};

// A float of memory, or of a matrix of them.
inline float& number(HbmAddr at, size_t i) { return reinterpret_cast<float*>(at.value)[i]; }

inline void compute(const cmd::Vector& v) {
  for (size_t i = 0; i < v.n; ++i)
    number(v.dst, i) =
        v.op == VectorOp::add ? number(v.a, i) + number(v.b, i) : number(v.a, i) - number(v.b, i);
}

inline void compute(const cmd::Matmul& m) {
  for (size_t i = 0; i < m.m; ++i)
    for (size_t j = 0; j < m.n; ++j) {
      float sum = 0;
      for (size_t k = 0; k < m.k; ++k) sum += number(m.a, i * m.k + k) * number(m.b, k * m.n + j);
      number(m.c, i * m.n + j) = sum;
    }
}

inline void copy_part(const cmd::Copy& copy, HandMade::Part part) {
  auto* to = reinterpret_cast<std::byte*>(copy.dst.addr);
  const auto* from = reinterpret_cast<const std::byte*>(copy.src.addr);
  if (part == HandMade::Part::all) std::memmove(to, from, copy.len);
  if (part != HandMade::Part::all_but_the_middle) return;
  uint64_t third = copy.len / 3;
  std::memmove(to, from, third);
  std::memmove(to + 2 * third, from + 2 * third, copy.len - 2 * third);
}

class HandQueue final : public Queue {
 public:
  HandQueue(const HandMade& how, const QueueSpec& spec, unsigned number, bool sound)
      : how_(how),
        service_(how.slow_service > 0ns && number % 2 == 1 ? how.slow_service : how.service),
        depth_(1u << spec.order),
        sound_(sound) {}
  uint16_t id() const override { return 1; }
  uint32_t depth() const override { return depth_; }
  uint32_t outstanding() const override { return static_cast<uint32_t>(pending_.size()) + swallowed_; }
  Ticket submit(const Command& command, bool) override {
    uint64_t n = next_++;
    if (n >= how_.gone_after) throw Error({Errc::gone, "submit to", "queue 1", "the device is gone", "", 0});
    if (outstanding() >= depth_) throw Error({Errc::busy, "submit to", "queue 1", "full", "", 0});
    auto now = Clock::now();
    if (n == 0) first_ = now;
    silent_ |= n >= how_.silent_after;
    if (silent_ || (!sound_ && how_.swallow(n))) {
      ++swallowed_;
      return n + 1;
    }
    auto begin = std::max(now, last_end_);
    auto stall = first_ + how_.stall_from, over = stall + how_.stall_for;
    last_end_ = begin + service_;
    if (how_.stall_for > 0ns && last_end_ >= stall && last_end_ < over) last_end_ = over + service_;
    pending_.push_back(
        {n + 1, last_end_, how_.status(n), command, !sound_ && how_.spoil(n), how_.part(n, command)});
    return n + 1;
  }
  void ring() override {}
  uint16_t cid(Ticket t) const override { return static_cast<uint16_t>(t); }
  std::vector<Completion> poll() override {
    std::vector<Completion> out;
    for (; !pending_.empty() && pending_.front().at <= Clock::now(); pending_.pop_front()) {
      Pending& p = pending_.front();
      if (p.status == Status::ok) carry_out(p);
      out.push_back({p.ticket, p.status, 0, p.at, Clock::now()});
    }
    return out;
  }
  std::vector<Completion> wait(Deadline deadline) override {
    for (;;) {
      auto out = poll();
      if (!out.empty() || deadline.passed()) return out;
      auto until =
          pending_.empty() ? deadline.left() : std::min(deadline.left(), pending_.front().at - Clock::now());
      std::this_thread::sleep_for(std::max(until, 0ns));
    }
  }
  std::vector<Completion> reset(Deadline) override { return {}; }
  void overfill(const Command&) override {}
  const QueueAudit& audit() const override { return audit_; }
  void look_for_device() const override {
    if (silent_) throw Error({Errc::gone, "wait on", "queue 1", "registers read all ones", "", 0});
  }

 private:
  struct Pending {
    Ticket ticket;
    Clock::time_point at;
    Status status;
    Command command;
    bool spoil;
    HandMade::Part part;
  };
  static void carry_out(const Pending& p) {
    if (const auto* copy = std::get_if<cmd::Copy>(&p.command.work)) {
      copy_part(*copy, p.part);
      if (p.spoil) reinterpret_cast<std::byte*>(copy->dst.addr)[copy->len / 2] ^= std::byte{4};
    }
    const auto* vector = std::get_if<cmd::Vector>(&p.command.work);
    const auto* matmul = std::get_if<cmd::Matmul>(&p.command.work);
    if (vector != nullptr && p.part == HandMade::Part::all) compute(*vector);
    if (matmul != nullptr && p.part == HandMade::Part::all) compute(*matmul);
  }

  const HandMade& how_;
  const std::chrono::nanoseconds service_;
  uint32_t depth_, swallowed_ = 0;
  uint64_t next_ = 0;
  const bool sound_;
  bool silent_ = false;
  Clock::time_point first_, last_end_;
  std::deque<Pending> pending_;
  QueueAudit audit_;
};

class HandBlock final : public HbmBlock {
 public:
  explicit HandBlock(std::shared_ptr<std::vector<std::byte>> bytes) : bytes_(std::move(bytes)) {}
  HbmAddr addr() const override { return {reinterpret_cast<uint64_t>(bytes_->data())}; }
  uint64_t size() const override { return bytes_->size(); }
  Status free() override { return Status::ok; }

 private:
  std::shared_ptr<std::vector<std::byte>> bytes_;
};

class HandContext final : public Context {
 public:
  HandContext(const HandMade& how, bool sound) : how_(how), sound_(sound) {}
  uint32_t id() const override { return 1; }
  std::unique_ptr<Queue> open_queue(const QueueSpec& s) override {
    return std::make_unique<HandQueue>(how_, s, queues_++, sound_);
  }
  std::unique_ptr<HbmBlock> alloc(Bytes size) override {
    unsigned n = allocations_++;
    if (how_.alloc_status != Status::ok && n >= 2)
      throw StatusError(how_.alloc_status, {Errc::status, "allocate", "HBM", "the device refuses", "", 0});
    auto bytes = n >= how_.twins_from ? twin_ : fresh(n, size.value);
    if (n == how_.twin_of) twin_ = bytes;
    return std::make_unique<HandBlock>(bytes);
  }
  Status free_raw(HbmAddr) override { return Status::ok; }

 private:
  std::shared_ptr<std::vector<std::byte>> fresh(unsigned n, uint64_t size) const {
    if (how_.memory && n < how_.memory->size()) return how_.memory->at(n);
    auto bytes = std::make_shared<std::vector<std::byte>>(size);
    if (how_.memory) how_.memory->push_back(bytes);
    return bytes;
  }

  const HandMade& how_;
  const bool sound_;
  unsigned allocations_ = 0, queues_ = 0;
  std::shared_ptr<std::vector<std::byte>> twin_;
};

class HandBuffer final : public DmaBuffer {
 public:
  explicit HandBuffer(uint64_t size) : bytes_(size) {}
  std::span<std::byte> bytes() override { return bytes_; }
  Iova iova() const override { return {reinterpret_cast<uint64_t>(bytes_.data())}; }
  void unmap() override {}

 private:
  std::vector<std::byte> bytes_;
};

class HandDevice final : public Device {
 public:
  explicit HandDevice(HandMade how) : how_(std::move(how)) {
    caps_.have = {Cap::queues,    Cap::contexts,   Cap::dma,    Cap::hbm_alloc,
                  Cap::telemetry, Cap::matmul_f32, Cap::vector, Cap::registers};
    identity_.uri = "hand:";
  }
  const Identity& identity() const override { return identity_; }
  const Capabilities& capabilities() const override { return caps_; }
  ConfigSpace& config() override { refuse(); }
  Telemetry telemetry() override {
    Telemetry t;
    t.all_ones = how_.telemetry_lies || how_.all_ones;
    return t;
  }
  uint32_t read_register(uint32_t) override { return how_.all_ones ? ~0u : KZ_MAGIC; }
  void write_register(uint32_t, uint32_t) override { refuse(); }
  void wait_register(uint32_t, uint32_t, uint32_t, Deadline) override { refuse(); }
  void reset(ResetKind, Deadline) override { refuse(); }
  void recover(Deadline) override { refuse(); }
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) override {
    return std::make_shared<HandBuffer>(spec.size.value);
  }
  std::unique_ptr<Context> create_context() override {
    return std::make_unique<HandContext>(how_, contexts_++ < how_.sound_contexts);
  }
  Context& root_context() override { refuse(); }
  HbmAddr physical(const Context&, HbmAddr) override { refuse(); }
  Aperture& aperture() override { refuse(); }
  std::vector<uint64_t> interrupt_counts() override { return {}; }

 private:
  [[noreturn]] static void refuse() { throw Error({Errc::unsupported, "call", "hand:", "not here", "", 0}); }
  HandMade how_;
  unsigned contexts_ = 0;
  Identity identity_;
  Capabilities caps_;
};

inline std::unique_ptr<Sum> run_on(const HandMade& how, const std::string& profile) {
  Plan plan = parse_plan(profile, "test");
  Ledger ledger(plan);
  HandDevice device(how);
  run_process(
      plan, 0, ledger, [&](const std::string&) -> Device& { return device; }, Start::now);
  return add_up(ledger);
}

}  // namespace kz::load
