// SPDX-License-Identifier: GPL-2.0-or-later
// The engine on a device made by hand, whose every delay and fault is chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "shim/load/tables.h"
#include "tests/unit/load_hand_device.h"

namespace kz::load {
namespace {

uint64_t us(uint64_t ns) { return ns / 1000; }

TEST(load_engine, every_operation_is_sent_and_accounted_for) {
  auto s = run_on({.service = 10us},
                  "[a]\nmix=copy-in:2,copy-out:2,copy-hbm,nop,alloc,telemetry\nsize=64-9000\n"
                  "rate=2000\ntime=300ms\n");
  EXPECT_THAT(s->errors, ::testing::IsEmpty());
  EXPECT_THAT(s->findings, ::testing::IsEmpty());
  EXPECT_TRUE(s->clean());
  EXPECT_EQ(s->all.sent - s->ops[static_cast<size_t>(Op::check)].sent, 600u);
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
  EXPECT_EQ(s->all.completed, 500u);
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

TEST(load_engine, a_stall_at_the_end_shows_as_one_in_the_middle) {
  // From 200 ms to 500 ms nothing completes, and the load ends at 300 ms: 50 operations are due in the stall
  // before that, all of them wait for 200 ms or more.
  auto s = run_on({.service = 20us, .stall_from = 200ms, .stall_for = 300ms},
                  "[a]\nmix=nop\nrate=500\ntime=300ms\ndepth=8\n");
  EXPECT_TRUE(s->clean());
  EXPECT_EQ(s->all.completed, 150u);
  EXPECT_EQ(s->all.latency.count(), 150u);
  EXPECT_GT(us(s->all.latency.quantile(0.9)), 190'000u);
}

TEST(load_engine, what_was_due_but_never_started_counts_with_the_time_it_waited) {
  // 100/s served, 1000/s wanted for 200 ms: the last of 200 would start after 2 s, we wait for 300 ms.
  for (const std::string end : {"", "count=200\n"}) {
    auto s = run_on({.service = 10ms}, "[a]\nmix=nop\nrate=1000\ntime=200ms\ntimeout=300ms\ndepth=2\n" + end);
    EXPECT_FALSE(s->clean());
    EXPECT_TRUE(s->balanced());
    EXPECT_EQ(s->all.sent + s->not_started, 200u);
    EXPECT_GT(s->all.sent, 10u);
    EXPECT_LE(s->all.sent, 55u);
    EXPECT_GT(s->not_started, 100u);
    EXPECT_EQ(s->all.latency.count(), 200u);
    // The latest was due at 200 ms, the first that never started at 50 ms, and 500 ms was the end.
    EXPECT_GT(us(s->all.latency.quantile(0.9)), 290'000u);
  }
}

TEST(load_engine, what_waits_when_the_device_is_lost_counts_with_the_time_it_waited) {
  auto s = run_on({.service = 10ms, .gone_after = 20}, "[a]\nmix=nop\nrate=1000\ntime=5s\ndepth=2\n");
  EXPECT_EQ(s->device_lost, 1u);
  EXPECT_GT(s->not_started, 50u);
  EXPECT_EQ(s->all.latency.count(), s->all.completed + s->not_started);
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

TEST(load_engine, a_refused_allocation_keeps_its_status_and_its_reason) {
  auto s =
      run_on({.service = 10us, .alloc_status = Status::denied}, "[a]\nmix=alloc\nrate=500\ntime=200ms\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_GT(s->all.failed, 10u);
  EXPECT_EQ(s->failed_by[static_cast<size_t>(Status::denied)], s->all.failed);
  ASSERT_EQ(s->findings.size(), 1u);
  EXPECT_THAT(s->findings[0], ::testing::HasSubstr("the device refuses"));
}

TEST(load_engine, telemetry_of_all_ones_is_a_failure_and_no_loss_while_registers_answer) {
  auto s = run_on({.service = 10us, .telemetry_lies = true}, "[a]\nmix=telemetry\nrate=500\ntime=100ms\n");
  EXPECT_EQ(s->device_lost, 0u);
  EXPECT_EQ(s->all.sent, 50u);
  EXPECT_EQ(s->all.failed, 50u);
  ASSERT_EQ(s->findings.size(), 1u);
  EXPECT_THAT(s->findings[0], ::testing::HasSubstr("telemetry"));
  s = run_on({.service = 10us, .all_ones = true}, "[a]\nmix=telemetry\nrate=500\ntime=100ms\n");
  EXPECT_EQ(s->device_lost, 1u);
  EXPECT_EQ(s->all.failed, 0u);
  EXPECT_TRUE(s->balanced());
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

TEST(load_engine, what_one_thread_loses_ends_the_load_of_all) {
  HandMade how{.service = 10us};
  how.swallow = [](uint64_t n) { return n == 20; };
  how.sound_contexts = 2;  // the second thread of [a] is the one
  auto s =
      run_on(how, "[global]\nmix=nop\ntime=20s\nrate=1000\n[b]\ntimeout=9s\n[a]\nthreads=2\ntimeout=200ms\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_GE(s->all.lost, 1u);
  EXPECT_LT(s->seconds, 5);
}

TEST(load_engine, a_device_that_goes_away_cancels_what_was_outstanding) {
  auto s = run_on({.service = 5ms, .gone_after = 50}, "[a]\nmix=nop\nrate=1000\ntime=5s\n");
  EXPECT_TRUE(s->balanced());
  EXPECT_EQ(s->device_lost, 1u);
  EXPECT_EQ(s->all.sent, 51u);  // the one that was refused is in the books
  EXPECT_EQ(s->all.completed + s->cancelled_by[static_cast<size_t>(Cancel::device_gone)], 51u);
  EXPECT_GT(s->all.cancelled, 5u);
}

TEST(load_engine, a_device_that_is_lost_without_a_word_is_found_by_looking) {
  for (const std::string timeout : {"200ms", "30s"}) {
    auto s = run_on({.service = 100us, .silent_after = 50},
                    "[a]\nmix=nop\nrate=1000\ntime=20s\ntimeout=" + timeout + "\n");
    EXPECT_TRUE(s->balanced());
    EXPECT_EQ(s->device_lost, 1u);
    EXPECT_EQ(s->all.lost, 0u);
    EXPECT_GT(s->cancelled_by[static_cast<size_t>(Cancel::device_gone)], 10u);
    EXPECT_LT(s->seconds, 5);
  }
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

TEST(load_engine, a_queue_is_not_slow_because_another_of_its_thread_is) {
  // Operations go to the two queues in turn; the slow one has nearly always something under way. What a busy
  // host adds is no fault: one good try in a few is enough.
  uint64_t fast = UINT64_MAX;
  for (int tries = 0; tries < 8 && fast >= 350; ++tries) {
    auto s =
        run_on({.service = 100us, .slow_service = 1700us}, "[a]\nmix=nop\nrate=1000\nqueues=2\ntime=400ms\n");
    EXPECT_TRUE(s->clean());
    EXPECT_GT(us(s->all.latency.quantile(0.75)), 1650u);
    fast = std::min(fast, us(s->all.latency.quantile(0.35)));
  }
  EXPECT_LT(fast, 350u);
}

TEST(load_engine, a_device_without_the_capability_is_refused_before_anything_is_sent) {
  auto s = run_on({}, "[a]\nmix=matmul\ndtype=s8\ntime=1s\n");
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
  EXPECT_TRUE(s->balanced());
  EXPECT_EQ(s->all.completed, s->all.sent);
  EXPECT_GE(s->all.completed, 50u);
  EXPECT_LT(s->seconds, 5);
}

TEST(load_engine, a_stop_while_it_prepares_is_heard) {
  // Two products of 2000 x 2000 take longer by far.
  Plan plan = parse_plan("[a]\nmix=matmul\ndim=2000\nentries=2\n", "test");
  Ledger ledger(plan);
  HandDevice device(HandMade{});
  auto began = Clock::now();
  Hooks hooks;
  hooks.stop = [&] { return Clock::now() - began > 100ms; };
  run_process(
      plan, 0, ledger, [&](const std::string&) -> Device& { return device; }, Start::now, hooks);
  EXPECT_LT(Clock::now() - began, 2s);
  auto s = add_up(ledger);
  EXPECT_EQ(s->all.sent, 0u);
  EXPECT_THAT(s->errors, ::testing::IsEmpty());
}

TEST(load_engine, workers_that_need_the_same_tables_share_them) {
  TableCache cache({});
  Job one, other;
  other.seed = 2;
  EXPECT_EQ(cache.get(Op::matmul, one), cache.get(Op::matmul, one));
  EXPECT_NE(cache.get(Op::matmul, one), cache.get(Op::matmul, other));
  EXPECT_NE(cache.get(Op::matmul, one), cache.get(Op::vector, one));
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
  a.began_ns = static_cast<uint64_t>(Clock::now().time_since_epoch().count()) - 3'000'000'000;
  EXPECT_TRUE(ledger.settle(0, Cancel::process_died));
  auto s = add_up(ledger);
  EXPECT_TRUE(s->balanced());
  EXPECT_NEAR(s->seconds, 3, 0.5);
  EXPECT_EQ(s->cancelled_by[static_cast<size_t>(Cancel::process_died)], 3u);
  EXPECT_FALSE(s->clean());
}

TEST(load_engine, books_that_are_wrong_both_ways_do_not_balance) {
  Plan plan = parse_plan("[a]\nmix=nop\nthreads=2\n", "test");
  Ledger ledger(plan);
  ledger.account(0).ops[0].sent = 1;
  ledger.account(1).ops[0].completed = 1;
  EXPECT_FALSE(add_up(ledger)->balanced());
}

TEST(load_engine, books_that_are_taken_away_from_a_process_stay_as_they_are) {
  Plan plan = parse_plan("[a]\nmix=nop\n", "test");
  Ledger ours(plan);
  Ledger theirs(plan, Fd(::dup(ours.fd())));
  theirs.account(0).ops[0].sent = 7;
  ours.detach();
  theirs.account(0).ops[0].sent = 9;
  EXPECT_EQ(ours.account(0).ops[0].sent, 7u);
  EXPECT_TRUE(ours.settle(0, Cancel::stopped));
  EXPECT_TRUE(add_up(ours)->balanced());
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
    EXPECT_EQ(open->all.completed, 2000u) << target;
  }
  std::remove(file.c_str());
}

TEST(load_engine, io_uring_too_slow_for_the_rate_is_said) {
  // Faster than any: what is due in 20 ms takes longer than these and the timeout together.
  auto s = run_host("[a]\ntarget=nop\nrate=500M\ntime=20ms\ntimeout=20ms\n");
  EXPECT_FALSE(s->clean());
  EXPECT_TRUE(s->balanced());
  EXPECT_EQ(s->all.sent + s->not_started, 10'000'000u);
  EXPECT_EQ(s->all.latency.count(), 10'000'000u);
  EXPECT_GT(us(s->all.latency.max()), 20'000u);
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
