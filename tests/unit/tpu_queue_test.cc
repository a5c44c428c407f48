// SPDX-License-Identifier: GPL-2.0-or-later
// The driver's queue and its books against devices that keep the rules and devices that break one. The rules
// are those of shim/uapi/kz_cmd.h. Those of interrupts are in tpu_queue_interrupts_test.cc.
#include <random>
#include <thread>

#include "tests/unit/code_of.h"
#include "tests/unit/tpu_queue_rig.h"

namespace kz::tpu {
namespace {

// Its closing went unheard: the next owner of the number starts from a reset all the same.
TEST_F(TpuQueueTest, TakesOverANumberThatWasLeftEnabled) {
  auto q = open();
  tpu->silent = true;
  q.reset();
  tpu->silent = false;
  q = open();
  q->submit({cmd::Nop{}}, true);
  EXPECT_EQ(collect(*q).size(), 1u);
}

TEST_F(TpuQueueTest, MemoryThatTheDeviceMayHoldIsNotGivenToAnother) {
  tpu->map_error = Errc::timeout;
  EXPECT_EQ(code_of([&] { DmaMemory(core, {.size = 4_KiB}); }), Errc::timeout);
  uint64_t taken = core->pool.in_use();
  EXPECT_GE(taken, 4096u);
  DmaMemory next(core, {.size = 4_KiB});
  EXPECT_GT(core->pool.in_use(), taken);
  tpu->map_error = Errc::io;  // a refusal
  uint64_t before = core->pool.in_use();
  EXPECT_EQ(code_of([&] { DmaMemory(core, {.size = 4_KiB}); }), Errc::io);
  EXPECT_EQ(core->pool.in_use(), before);
}

TEST_F(TpuQueueTest, KeepsCleanBooksOnASoundDevice) {
  for (bool interrupts : {true, false}) {
    auto q = open({.order = 3, .interrupts = interrupts});
    std::mt19937 rng(1);
    Ticket next = 1;
    for (int round = 0; round < 400; ++round) {
      auto n = 1 + rng() % q->depth();
      for (uint32_t i = 0; i < n; ++i)
        EXPECT_EQ(q->submit({.work = cmd::Nop{}, .quiet = rng() % 4 == 0}, i + 1 < n), next + i);
      auto done = collect(*q);
      ASSERT_EQ(done.size(), n);
      for (const auto& c : done) {
        ASSERT_EQ(c.ticket, next++);
        ASSERT_EQ(c.status, Status::ok);
        ASSERT_GE(c.seen, c.submitted);
      }
    }
    EXPECT_EQ(broken(q->audit()), Broken{});
    EXPECT_EQ(q->audit().submitted, next - 1);
    EXPECT_EQ(q->audit().completed, next - 1);
    EXPECT_EQ(q->audit().interrupts > 0, interrupts);
    core->vectors.counts();
  }
  EXPECT_EQ(tpu->mappings, 0u) << "rings stay mapped after their queue";
}

TEST_F(TpuQueueTest, HoldsUntilRungOrWaitedFor) {
  auto q = open();
  q->submit({cmd::Nop{}}, true);
  q->submit({cmd::Nop{}}, true);
  EXPECT_TRUE(q->poll().empty());
  EXPECT_EQ(tpu->ring(1).fetched, 0u);
  q->ring();
  EXPECT_EQ(q->poll().size(), 2u);
  q->submit({cmd::Nop{}}, true);
  EXPECT_EQ(q->wait(Deadline(1s)).size(), 1u) << "wait rings";
  EXPECT_EQ(broken(q->audit()), Broken{});
}

TEST_F(TpuQueueTest, RefusesMoreThanItsEntries) {
  tpu->script = [](auto&...) {};
  auto q = open({.order = 1});
  q->submit({cmd::Nop{}}, false);
  q->submit({cmd::Nop{}}, false);
  EXPECT_EQ(code_of([&] { q->submit({cmd::Nop{}}, false); }), Errc::busy);
  EXPECT_EQ(q->outstanding(), 2u);
  auto lost = q->reset(Deadline(1s));
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_EQ(lost[0].status, Status::lost);
  EXPECT_EQ(q->audit().dropped, 2u);
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) { t.complete(r, c); };
  EXPECT_EQ(run(*q, {cmd::Nop{}}, 1s).ticket, 3u) << "tickets go on after a reset";
  EXPECT_EQ(broken(q->audit()), Broken{});
}

TEST_F(TpuQueueTest, OverfillsWhenAsked) {
  std::vector<kz_cmd> kept;
  auto q = open({.order = 1, .interrupts = false});
  tpu->script = [&](FakeTpu&, Ring&, const kz_cmd& c) { kept.push_back(c); };
  q->submit({cmd::Nop{}}, false);
  q->submit({cmd::Nop{}}, false);
  q->overfill({cmd::Fence{}});
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[2].opcode, KZ_OP_FENCE);
  EXPECT_EQ(q->outstanding(), 3u);
}

TEST_F(TpuQueueTest, FindsTheIdOfATicket) {
  std::vector<uint16_t> seen;
  tpu->script = [&](FakeTpu&, Ring&, const kz_cmd& c) { seen.push_back(c.cid); };
  auto q = open();
  Ticket first = q->submit({cmd::Nop{}}, false), second = q->submit({cmd::Nop{}}, false);
  EXPECT_EQ(q->cid(first), seen[0]);
  EXPECT_EQ(q->cid(second), seen[1]);
  EXPECT_EQ(code_of([&] { q->cid(second + 1); }), Errc::not_found);
}

TEST_F(TpuQueueTest, CountsDuplicates) {
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    t.complete(r, c);
    t.complete(r, c);
  };
  auto q = open();
  for (int i = 0; i < 3; ++i) run(*q, {cmd::Nop{}}, 1s);
  q->poll();
  EXPECT_EQ(broken(q->audit()), (Broken{{"duplicate", 3}}));
  EXPECT_EQ(q->audit().completed, 3u);
}

TEST_F(TpuQueueTest, RecognisesALateDuplicate) {
  kz_cmd first{};
  auto q = open();
  tpu->script = [&](FakeTpu& t, Ring& r, const kz_cmd& c) {
    if (first.opcode == 0 && r.fetched == 1) first = c;
    if (r.fetched == 10) t.complete(r, first);
    t.complete(r, c);
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(run(*q, {cmd::Nop{}}, 1s).ticket, static_cast<Ticket>(i + 1));
  EXPECT_EQ(broken(q->audit()), (Broken{{"duplicate", 1}}));
}

TEST_F(TpuQueueTest, CountsUnknownAndForeignCompletions) {
  auto q = open();
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    kz_cqe unknown = t.cqe(r, c), foreign = t.cqe(r, c), renamed = t.cqe(r, c);
    unknown.cid = static_cast<uint16_t>(c.cid + 1000);
    foreign.cid = 5;  // an id of queue 0
    foreign.queue = 0;
    renamed.queue = 9;
    t.post(r, unknown);
    t.post(r, foreign);
    t.post(r, renamed);
    t.raise(r.vector, 3);
  };
  EXPECT_EQ(run(*q, {cmd::Nop{}}, 1s).ticket, 1u) << "the right id in our own ring completes the command";
  EXPECT_EQ(broken(q->audit()), (Broken{{"unknown", 1}, {"wrong_queue", 2}}));
}

TEST_F(TpuQueueTest, ChecksTheFetchCount) {
  auto q = open();
  int n = 0;
  tpu->script = [&](FakeTpu& t, Ring& r, const kz_cmd& c) {
    kz_cqe cqe = t.cqe(r, c);
    if (++n == 2) cqe.sq_head = static_cast<uint16_t>(cqe.sq_head + 1);  // not submitted yet
    if (n == 3)
      cqe.sq_head = static_cast<uint16_t>(cqe.sq_head - 1);  // it was fetched, or it would not complete
    t.post(r, cqe);
    t.raise(r.vector);
  };
  for (int i = 0; i < 5; ++i) run(*q, {cmd::Nop{}}, 1s);
  EXPECT_EQ(broken(q->audit()), (Broken{{"bad_sq_head", 2}}));
}

TEST_F(TpuQueueTest, CountsCompletionsWithAWrongPhase) {
  auto q = open({.order = 1});
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    kz_cqe cqe = t.cqe(r, c);
    if (r.written < r.entries) return t.complete(r, c);
    cqe.status |= 1;  // as on the first lap
    t.place(r, r.written++, cqe);
    t.raise(r.vector);
  };
  for (int i = 0; i < 2; ++i) run(*q, {cmd::Nop{}}, 1s);
  q->submit({cmd::Nop{}}, false);
  EXPECT_TRUE(q->wait(Deadline(30ms)).empty());
  EXPECT_EQ(broken(q->audit()), (Broken{{"bad_phase", 1}, {"interrupt_without_completion", 1}}));
}

TEST_F(TpuQueueTest, CountsCompletionsOutOfTurn) {
  auto q = open();
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    kz_cqe cqe = t.cqe(r, c);
    cqe.status |= 1;
    t.place(r, 2, cqe);
  };
  q->submit({cmd::Nop{}}, false);
  EXPECT_TRUE(q->wait(Deadline(30ms)).empty());
  EXPECT_EQ(broken(q->audit()), (Broken{{"bad_phase", 1}}));
}

TEST_F(TpuQueueTest, KeepsAStatusThatTheAbiDoesNotKnow) {
  auto q = open();
  tpu->script = [](FakeTpu& t, Ring& r, const kz_cmd& c) {
    kz_cqe cqe = t.cqe(r, c);
    cqe.status = 0x123 << 1;
    cqe.result = 0x1122334455667788;
    t.post(r, cqe);
    t.raise(r.vector);
  };
  Completion done = run(*q, {cmd::Nop{}}, 1s);
  EXPECT_EQ(static_cast<uint16_t>(done.status), 0x123);
  EXPECT_EQ(done.result, 0x1122334455667788u);
  EXPECT_EQ(broken(q->audit()), (Broken{{"reserved", 1}}));
}

TEST_F(TpuQueueTest, TimesOutWithinItsBudget) {
  tpu->script = [](auto&...) {};
  auto q = open();
  auto start = Clock::now();
  try {
    run(*q, {cmd::Copy{}}, 60ms);
    ADD_FAILURE() << "no timeout";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::timeout);
    EXPECT_NE(std::string(e.what()).find("COPY on queue 1"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("of 60 ms"), std::string::npos) << e.what();
  }
  EXPECT_LT(Clock::now() - start, 1s);
}

TEST_F(TpuQueueTest, TellsALostDeviceFromASlowOne) {
  tpu->script = [](auto&...) {};
  auto q = open();
  q->submit({cmd::Nop{}}, false);
  EXPECT_TRUE(q->wait(Deadline(60ms)).empty());
  tpu->all_ones = true;
  try {
    q->wait(Deadline(5s));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::gone);
    EXPECT_NE(std::string(e.what()).find("ones"), std::string::npos);
  }
}

TEST_F(TpuQueueTest, EndsWhenTheConnectionDoes) {
  tpu->script = [](auto&...) {};
  auto q = open();
  q->submit({cmd::Nop{}}, false);
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    tpu->open = false;
  });
  auto start = Clock::now();
  EXPECT_EQ(code_of([&] { q->wait(Deadline(30s)); }), Errc::gone);
  EXPECT_LT(Clock::now() - start, 2s);
  killer.join();
  EXPECT_EQ(code_of([&] { q->submit({cmd::Nop{}}, false); }), Errc::gone);
  EXPECT_EQ(code_of([&] { q->poll(); }), Errc::gone);
}

TEST_F(TpuQueueTest, IsDeadAfterAResetOfTheDevice) {
  tpu->script = [](auto&...) {};
  auto q = open();
  q->submit({cmd::Nop{}}, false);
  ++core->generation;
  tpu->registers.clear();
  auto lost = q->wait(Deadline(1s));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].status, Status::lost);
  EXPECT_EQ(code_of([&] { q->wait(Deadline(1s)); }), Errc::gone);
  EXPECT_EQ(code_of([&] { q->submit({cmd::Nop{}}, false); }), Errc::gone);
  q.reset();
  EXPECT_FALSE(tpu->registers.contains(KZ_REG_QUEUE(1) + KZ_Q_CTRL)) << "a dead queue touched the device";
}

TEST_F(TpuQueueTest, DestructorsDoNotHangOnASilentDevice) {
  std::vector<std::unique_ptr<TpuQueue>> queues;
  for (uint16_t id = 1; id < 4; ++id) queues.push_back(open({.order = 2}, id));
  tpu->silent = true;
  auto start = Clock::now();
  queues.clear();
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST_F(TpuQueueTest, ReportsASetUpThatTheDeviceRefuses) {
  struct Refusing {
    uint32_t state;
    Errc code;
  };
  for (auto [state, code] : {Refusing{KZ_QSTATE_ERROR | KZ_QERR_BAD_CONFIG << 8, Errc::protocol},
                             Refusing{KZ_QSTATE_OFF, Errc::timeout}}) {
    tpu->refuse_state = state;
    EXPECT_EQ(code_of([&] { open(); }), code);
    tpu->refuse_state.reset();
  }
  EXPECT_EQ(code_of([&] { open({.order = 2, .vector = 99}); }), Errc::usage);
  EXPECT_EQ(tpu->mappings, 0u);
}

}  // namespace
}  // namespace kz::tpu
