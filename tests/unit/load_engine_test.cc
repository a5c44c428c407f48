// SPDX-License-Identifier: GPL-2.0-or-later
// The engine on a device made by hand, whose every delay and fault is chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "shim/base/error.h"
#include "shim/load/engine.h"
#include "shim/load/report.h"

namespace kz::load {
namespace {

// Completes commands in order, each `service` after the later of its submission and the end of the one
// before; during a stall nothing completes. Memory is the process's own; HBM addresses are pointers.
struct HandMade {
  std::chrono::nanoseconds service = 100us;
  std::chrono::nanoseconds stall_from{0}, stall_for{0};                          // since the first submission
  std::function<Status(uint64_t)> status = [](uint64_t) { return Status::ok; };  // of the n-th command
  std::function<bool(uint64_t)> swallow = [](uint64_t) { return false; };
  std::function<bool(uint64_t)> spoil = [](uint64_t) { return false; };  // its copy flips a bit
  uint64_t gone_after = UINT64_MAX;
};

class HandQueue final : public Queue {
 public:
  HandQueue(const HandMade& how, const QueueSpec& spec) : how_(how), depth_(1u << spec.order) {}
  uint16_t id() const override { return 1; }
  uint32_t depth() const override { return depth_; }
  uint32_t outstanding() const override { return static_cast<uint32_t>(pending_.size()) + swallowed_; }
  Ticket submit(const Command& command, bool) override {
    uint64_t n = next_++;
    if (n >= how_.gone_after) throw Error({Errc::gone, "submit to", "queue 1", "the device is gone", "", 0});
    if (outstanding() >= depth_) throw Error({Errc::busy, "submit to", "queue 1", "full", "", 0});
    auto now = Clock::now();
    if (n == 0) first_ = now;
    if (how_.swallow(n)) {
      ++swallowed_;
      return n + 1;
    }
    auto begin = std::max(now, last_end_);
    auto stall = first_ + how_.stall_from, over = stall + how_.stall_for;
    last_end_ = begin + how_.service;
    if (how_.stall_for > 0ns && last_end_ >= stall && last_end_ < over) last_end_ = over + how_.service;
    pending_.push_back({n + 1, last_end_, how_.status(n), command, how_.spoil(n)});
    return n + 1;
  }
  void ring() override {}
  uint16_t cid(Ticket t) const override { return static_cast<uint16_t>(t); }
  std::vector<Completion> poll() override {
    std::vector<Completion> out;
    for (; !pending_.empty() && pending_.front().at <= Clock::now(); pending_.pop_front()) {
      Pending& p = pending_.front();
      if (const auto* copy = std::get_if<cmd::Copy>(&p.command.work);
          copy != nullptr && p.status == Status::ok) {
        auto* to = reinterpret_cast<std::byte*>(copy->dst.addr);
        std::memmove(to, reinterpret_cast<const std::byte*>(copy->src.addr), copy->len);
        if (p.spoil) to[copy->len / 2] ^= std::byte{4};
      }
      out.push_back({p.ticket, p.status, 0, p.at, p.at});
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

 private:
  struct Pending {
    Ticket ticket;
    Clock::time_point at;
    Status status;
    Command command;
    bool spoil;
  };
  const HandMade& how_;
  uint32_t depth_, swallowed_ = 0;
  uint64_t next_ = 0;
  Clock::time_point first_, last_end_;
  std::deque<Pending> pending_;
  QueueAudit audit_;
};

class HandBlock final : public HbmBlock {
 public:
  explicit HandBlock(uint64_t size) : bytes_(size) {}
  HbmAddr addr() const override { return {reinterpret_cast<uint64_t>(bytes_.data())}; }
  uint64_t size() const override { return bytes_.size(); }
  Status free() override { return Status::ok; }

 private:
  std::vector<std::byte> bytes_;
};

class HandContext final : public Context {
 public:
  explicit HandContext(const HandMade& how) : how_(how) {}
  uint32_t id() const override { return 1; }
  std::unique_ptr<Queue> open_queue(const QueueSpec& s) override {
    return std::make_unique<HandQueue>(how_, s);
  }
  std::unique_ptr<HbmBlock> alloc(Bytes size) override { return std::make_unique<HandBlock>(size.value); }
  Status free_raw(HbmAddr) override { return Status::ok; }

 private:
  const HandMade& how_;
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
    caps_.have = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::telemetry};
    identity_.uri = "hand:";
  }
  const Identity& identity() const override { return identity_; }
  const Capabilities& capabilities() const override { return caps_; }
  ConfigSpace& config() override { refuse(); }
  Telemetry telemetry() override { return {}; }
  uint32_t read_register(uint32_t) override { refuse(); }
  void write_register(uint32_t, uint32_t) override { refuse(); }
  void wait_register(uint32_t, uint32_t, uint32_t, Deadline) override { refuse(); }
  void reset(ResetKind, Deadline) override { refuse(); }
  void recover(Deadline) override { refuse(); }
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) override {
    return std::make_shared<HandBuffer>(spec.size.value);
  }
  std::unique_ptr<Context> create_context() override { return std::make_unique<HandContext>(how_); }
  Context& root_context() override { refuse(); }
  HbmAddr physical(const Context&, HbmAddr) override { refuse(); }
  Aperture& aperture() override { refuse(); }
  std::vector<uint64_t> interrupt_counts() override { return {}; }

 private:
  [[noreturn]] static void refuse() { throw Error({Errc::unsupported, "call", "hand:", "not here", "", 0}); }
  HandMade how_;
  Identity identity_;
  Capabilities caps_;
};

std::unique_ptr<Sum> run_on(const HandMade& how, const std::string& profile) {
  Plan plan = parse_plan(profile, "test");
  Ledger ledger(plan);
  HandDevice device(how);
  run_process(
      plan, 0, ledger, [&](const std::string&) -> Device& { return device; }, Start::now);
  return add_up(ledger);
}

uint64_t us(uint64_t ns) { return ns / 1000; }

TEST(load_engine, every_operation_is_sent_and_accounted_for) {
  auto s = run_on({.service = 10us},
                  "[a]\nmix=copy-in:2,copy-out:2,copy-hbm,nop,alloc,telemetry\nsize=64-9000\n"
                  "rate=2000\ntime=300ms\n");
  EXPECT_THAT(s->errors, ::testing::IsEmpty());
  EXPECT_THAT(s->findings, ::testing::IsEmpty());
  EXPECT_TRUE(s->clean());
  EXPECT_EQ(s->all.sent + s->not_started, 600u);
  EXPECT_EQ(s->all.completed, s->all.sent);
  EXPECT_GT(s->all.verified, 50u);
  for (Op op : {Op::copy_in, Op::copy_out, Op::copy_hbm, Op::nop, Op::alloc, Op::free, Op::telemetry})
    EXPECT_GT(s->ops[static_cast<size_t>(op)].completed, 0u) << to_string(op);
}

TEST(load_engine, a_stall_shows_in_the_latency_of_all_that_should_have_started_in_it) {
  // 200 ms without an answer in 1 s at 500/s: 100 operations are due in it, with latencies evenly from 200 ms
  // to 0. A closed loop, or one that counts from the real start, would show a few.
  auto s = run_on({.service = 20us, .stall_from = 400ms, .stall_for = 200ms},
                  "[a]\nmix=nop\nrate=500\ntime=1s\nentries=64\n");
  ASSERT_TRUE(s->clean());
  EXPECT_EQ(s->all.completed + s->not_started, 500u);
  EXPECT_NEAR(static_cast<double>(us(s->all.latency.max())), 200'000, 30'000);
  EXPECT_NEAR(static_cast<double>(us(s->all.latency.quantile(0.9))), 100'000, 30'000);
  EXPECT_LT(us(s->all.latency.quantile(0.7)), 60'000u);
  // And the back-pressure is shown: the ring holds 64 of them.
  EXPECT_NEAR(static_cast<double>(s->backlog_max), 36, 20);
  EXPECT_GT(s->late, 20u);
  EXPECT_GT(s->ring_full, 0u);
}

TEST(load_engine, the_same_stall_hides_in_a_closed_loop) {
  auto s = run_on({.service = 50us, .stall_from = 100ms, .stall_for = 200ms},
                  "[a]\nmix=nop\nloop=closed\ntime=500ms\ndepth=4\n");
  ASSERT_TRUE(s->clean());
  EXPECT_LT(us(s->all.latency.quantile(0.9)), 5'000u);
  EXPECT_GE(us(s->all.latency.max()), 190'000u);
}

TEST(load_engine, what_was_due_but_never_started_is_said) {
  // 100/s served, 1000/s wanted, 500 ms.
  auto s = run_on({.service = 10ms}, "[a]\nmix=nop\nrate=1000\ntime=500ms\ndepth=2\n");
  EXPECT_TRUE(s->clean());
  EXPECT_EQ(s->all.sent + s->not_started, 500u);
  EXPECT_GT(s->all.sent, 10u);
  EXPECT_LE(s->all.sent, 52u);
  EXPECT_EQ(s->backlog_max, s->not_started);
}

TEST(load_engine, failures_are_counted_by_status) {
  HandMade how{.service = 10us};
  how.status = [](uint64_t n) {
    return n % 10 == 3 ? Status::poison : n % 10 == 7 ? Status::lost : Status::ok;
  };
  auto s = run_on(how, "[a]\nmix=nop\nrate=2000\ntime=200ms\n");
  EXPECT_FALSE(s->clean());
  EXPECT_TRUE(s->balanced());
  auto ends_in = [&](uint64_t digit) { return (s->all.sent + 9 - digit) / 10; };
  EXPECT_GT(s->all.sent, 100u);
  EXPECT_EQ(s->all.failed, ends_in(3));
  EXPECT_EQ(s->failed_by[static_cast<size_t>(Status::poison)], ends_in(3));
  EXPECT_EQ(s->cancelled_by[static_cast<size_t>(Cancel::reset)], ends_in(7));
  EXPECT_EQ(s->all.cancelled, ends_in(7));
}

TEST(load_engine, a_command_that_never_ends_is_lost_and_ends_the_load) {
  HandMade how{.service = 10us};
  how.swallow = [](uint64_t n) { return n == 20; };
  auto s = run_on(how, "[a]\nmix=nop\nrate=1000\ntime=5s\ntimeout=200ms\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_FALSE(s->clean());
  EXPECT_EQ(s->all.lost, 1u);
  EXPECT_LT(s->seconds, 2);
  ASSERT_EQ(s->errors.size(), 1u);
  EXPECT_THAT(s->errors[0], ::testing::HasSubstr("no answer to nop"));
}

TEST(load_engine, a_device_that_goes_away_cancels_what_was_outstanding) {
  auto s = run_on({.service = 5ms, .gone_after = 50}, "[a]\nmix=nop\nrate=1000\ntime=5s\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_EQ(s->device_lost, 1u);
  EXPECT_EQ(s->all.sent, 51u);  // the one that was refused is in the books
  EXPECT_EQ(s->all.completed + s->cancelled_by[static_cast<size_t>(Cancel::device_gone)], 51u);
  EXPECT_GT(s->all.cancelled, 30u);
}

TEST(load_engine, a_flipped_bit_is_found) {
  HandMade how{.service = 10us};
  how.spoil = [](uint64_t n) { return n > 200 && n % 50 == 0; };
  auto s = run_on(how, "[a]\nmix=copy-in,copy-out,copy-hbm\nrate=3000\nsize=4K\ntime=300ms\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_GT(s->all.mismatched, 3u);
  ASSERT_FALSE(s->findings.empty());
  EXPECT_THAT(s->findings[0], ::testing::HasSubstr("damaged"));
}

TEST(load_engine, a_count_ends_the_load_and_queues_are_shared_out) {
  auto s = run_on({.service = 20us}, "[a]\nmix=nop\nrate=5000\ncount=100\nthreads=2\nqueues=5\ntime=10s\n");
  EXPECT_TRUE(s->clean());
  EXPECT_EQ(s->all.completed, 200u);
  EXPECT_EQ(s->threads, 2u);
  EXPECT_LT(s->seconds, 3);
}

TEST(load_engine, a_device_without_the_capability_is_refused_before_anything_is_sent) {
  auto s = run_on({}, "[a]\nmix=matmul\ntime=1s\n");
  EXPECT_EQ(s->all.sent, 0u);
  ASSERT_EQ(s->errors.size(), 1u);
  EXPECT_THAT(s->errors[0], ::testing::HasSubstr("matmul"));
}

TEST(load_engine, a_stop_ends_it_early_and_everything_is_waited_for) {
  Plan plan = parse_plan("[a]\nmix=nop\nrate=1000\ntime=60s\n", "test");
  Ledger ledger(plan);
  HandDevice device(HandMade{.service = 500us});
  std::thread stopper([&] {
    while (peek(ledger.account(0).ops[0].completed) < 50) std::this_thread::sleep_for(1ms);
    ledger.ask_stop(1);
  });
  run_process(
      plan, 0, ledger, [&](const std::string&) -> Device& { return device; }, Start::now);
  stopper.join();
  auto s = add_up(ledger);
  EXPECT_TRUE(s->clean());
  EXPECT_GE(s->all.completed, 50u);
  EXPECT_LT(s->seconds, 5);
}

TEST(load_engine, the_books_of_a_dead_process_balance_once_settled) {
  Plan plan = parse_plan("[a]\nmix=nop\n", "test");
  Ledger ledger(plan);
  WorkerAccount& a = ledger.account(0);
  a.ops[0].sent = 10;
  a.ops[0].completed = 6;
  a.ops[0].failed = 1;
  ledger.set_state(0, WorkerAccount::running);
  EXPECT_FALSE(add_up(ledger)->balanced());
  EXPECT_TRUE(ledger.settle(0));
  auto s = add_up(ledger);
  EXPECT_TRUE(s->balanced());
  EXPECT_EQ(s->cancelled_by[static_cast<size_t>(Cancel::process_died)], 3u);
  EXPECT_FALSE(s->clean());
}

// Without a device: the same books on io_uring itself.
std::unique_ptr<Sum> run_host(const std::string& profile) { return run_on({}, profile); }

TEST(load_engine, io_uring_nops_and_file_reads_keep_the_same_books) {
  std::string file = ::testing::TempDir() + "kz-load-test.data";
  std::ofstream(file) << std::string(1 << 20, 'x');
  for (const std::string& target : {std::string("nop"), "file:" + file, std::string("uring-cmd:/dev/null")}) {
    auto closed = run_host("[a]\ntarget=" + target + "\nloop=closed\ncount=100000\nsize=4K\n");
    EXPECT_TRUE(closed->clean()) << target << (closed->errors.empty() ? "" : closed->errors[0]);
    EXPECT_EQ(closed->all.completed, 100'000u) << target;
    EXPECT_EQ(closed->all.latency.count(), 100'000u) << target;
    auto open = run_host("[a]\ntarget=" + target + "\nrate=10k\ntime=200ms\nsize=4K\n");
    EXPECT_TRUE(open->clean()) << target;
    EXPECT_EQ(open->all.completed + open->not_started, 2000u) << target;
  }
  std::remove(file.c_str());
}

TEST(load_engine, what_a_file_refuses_is_a_failure_not_a_success) {
  // Reads beyond the end of a file that shrank return fewer bytes.
  std::string file = ::testing::TempDir() + "kz-load-short.data";
  std::ofstream(file) << std::string(4096 * 8, 'x');
  Plan plan = parse_plan("[a]\ntarget=file:" + file + "\nrate=1000\ntime=300ms\nsize=4K\n", "test");
  Ledger ledger(plan);
  std::thread shrink([&] {
    while (peek(ledger.account(0).ops[static_cast<size_t>(Op::io)].completed) < 20)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(::truncate(file.c_str(), 4096), 0);
  });
  run_process(
      plan, 0, ledger, [](const std::string&) -> Device& { std::abort(); }, Start::now);
  shrink.join();
  auto s = add_up(ledger);
  EXPECT_TRUE(s->balanced());
  EXPECT_GT(s->all.failed, 0u);
  ASSERT_FALSE(s->findings.empty());
  std::remove(file.c_str());
}

}  // namespace
}  // namespace kz::load
