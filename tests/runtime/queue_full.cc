// SPDX-License-Identifier: GPL-2.0-or-later
// The ends of a ring: full rings, unread completions, too many commands, bad set-ups, queue resets.
#include <algorithm>
#include <thread>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "shim/base/host_load.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kFillBytes = uint64_t{4} << 20;

uint32_t queue_register(Device& device, const Queue& queue, uint32_t offset) {
  return device.read_register(KZ_REG_QUEUE(queue.id()) + offset);
}

}  // namespace

KZ_TEST(queue, full_ring,
        {.meaning = "a ring filled to its last entry loses nothing, and the driver refuses one more",
         .level = 4,
         .needs = {Cap::queues, Cap::hbm_alloc}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 2});
  auto hbm = context->alloc({kFillBytes});
  for (int round = 0; round < 25; ++round) {
    while (queue->outstanding() < queue->depth()) queue->submit({cmd::Fill{at(hbm->addr()), 65536, 3}});
    try {
      queue->submit({cmd::Nop{}});
      ADD_FAILURE() << "a command was taken beyond the ring's last entry";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::busy) << e.what();
    }
    EXPECT_EQ(finish(*queue).size(), queue->depth());
  }
}

KZ_TEST(queue, overflow,
        {.meaning = "more commands than entries: the queue stops with an overflow error or holds them back, "
                    "and loses none",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::raw_commands, Cap::raw_registers, Cap::reset_queue, Cap::hbm_alloc}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 2, .interrupts = false}, false);
  auto bystander = open_queue(*context);
  auto hbm = context->alloc({kFillBytes});
  constexpr int kExtra = 2;
  before_danger("put more commands into a queue than it has entries");
  // The first ones are long, so that the ring is still full when the extra ones come.
  for (uint32_t i = 0; i < queue->depth(); ++i)
    queue->submit({cmd::Fill{at(hbm->addr()), kFillBytes, 3}}, true);
  queue->ring();
  for (int i = 0; i < kExtra; ++i) queue->overfill({cmd::Nop{}});
  uint32_t state = 0;
  size_t seen = 0;
  seen_within(1s, [&] {
    state = queue_register(device(), *queue, KZ_Q_STATE);
    if ((state & 0xff) == KZ_QSTATE_ERROR) return true;
    seen += queue->poll().size();
    return seen == queue->depth() + kExtra;
  });
  const bool stopped = (state & 0xff) == KZ_QSTATE_ERROR && ((state >> 8) & 0xff) == KZ_QERR_OVERFLOW;
  const bool held = seen == queue->depth() + kExtra &&
                    queue->audit().duplicate_completion + queue->audit().unknown_completion == 0;
  if (!stopped && !held) {
    evidence(ev::ring_overrun,
             {{"lost", queue->depth() + kExtra - std::min<size_t>(seen, queue->depth() + kExtra)},
              {"state", state},
              {"seen", seen}});
    ADD_FAILURE() << "the ring was overrun: state " << state << ", " << seen << " completions for "
                  << queue->depth() + kExtra << " commands";
  }
  run_good(*bystander, {cmd::Nop{}});
  queue->reset(Deadline(2s));
  run_good(*queue, {cmd::Nop{}});
}

KZ_TEST(queue, unread_completions,
        {.meaning = "the device does not write over completions that were not consumed",
         .level = 4,
         .needs = {Cap::queues, Cap::raw_registers, Cap::timestamp}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 3, .interrupts = false});
  for (int round = 0; round < 20; ++round) {
    const uint32_t before = queue_register(device(), *queue, KZ_Q_CQ_TAIL);
    while (queue->outstanding() < queue->depth())
      queue->submit({.work = cmd::Timestamp{}, .fence = true}, true);
    queue->ring();
    seen_within(2s,
                [&] { return queue_register(device(), *queue, KZ_Q_CQ_TAIL) - before >= queue->depth(); });
    EXPECT_EQ(queue_register(device(), *queue, KZ_Q_CQ_TAIL) - before, queue->depth());
    const auto done = finish(*queue);
    ASSERT_EQ(done.size(), queue->depth());
    for (size_t i = 1; i < done.size(); ++i) EXPECT_EQ(done[i].ticket, done[i - 1].ticket + 1);
  }
}

KZ_TEST(queue, reset_drops,
        {.meaning = "a queue reset ends what is outstanding, accounts for it, and leaves a queue that works",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::reset_queue, Cap::hbm_alloc, Cap::dma}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context, {.order = 4});
  auto other = open_queue(*context);
  auto hbm = context->alloc({kFillBytes});
  HostArea host(device(), {.size = {4096}});
  for (int round = 0; round < 5; ++round) {
    std::vector<Ticket> sent;
    for (int i = 0; i < 10; ++i)
      sent.push_back(queue->submit({cmd::Fill{at(hbm->addr()), kFillBytes, 1}}, true));
    sent.push_back(queue->submit({cmd::Copy{at(hbm->addr()), host.place(), 4096}}, true));
    queue->ring();
    auto ended = queue->poll();
    before_danger("reset a queue with commands outstanding");
    auto dropped = queue->reset(Deadline(3s));
    std::ranges::fill(host.bytes(), std::byte{0x3c});
    ended.insert(ended.end(), dropped.begin(), dropped.end());
    EXPECT_EQ(ended.size(), sent.size()) << "commands are missing in the account";
    EXPECT_EQ(queue->outstanding(), 0u);
    run_good(*other, {cmd::Nop{}});
    run_good(*queue, {cmd::Nop{}});
    // What was dropped stays dropped: nothing writes the memory that is ours again.
    const bool late = std::ranges::any_of(host.bytes(), [](std::byte b) { return b != std::byte{0x3c}; });
    if (late) evidence(ev::data_rewritten, {{"after_ns", 0}, {"path", "hbm>host after queue reset"}});
    EXPECT_FALSE(late) << "a dropped copy wrote its target";
  }
}

KZ_TEST(queue, bad_setup,
        {.meaning = "a queue enabled with a bad base, size, vector or context goes to its error state and "
                    "harms no other",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::raw_registers, Cap::queues}}) {
  auto context = device().create_context();
  auto good = open_queue(*context);
  auto ring = device().dma_buffer({.size = {16384}});
  const uint16_t victim = caps().limits.queues - 1;
  if (victim == good->id()) block("the last queue is in use");
  const uint32_t block_at = KZ_REG_QUEUE(victim);
  auto put = [&](uint32_t reg, uint64_t v) {
    device().write_register(block_at + reg, static_cast<uint32_t>(v));
  };
  struct Setup {
    const char* what;
    uint64_t sq, order, vector, ctx;
  };
  const uint64_t base = ring->iova().value;
  for (const auto& s :
       {Setup{"a misaligned ring", base + 64, 2, victim, 0}, Setup{"order 0", base, 0, victim, 0},
        Setup{"an order beyond the largest", base, 31, victim, 0},
        Setup{"an unknown vector", base, 2, 4095, 0},
        Setup{"an unknown context", base, 2, victim, 0x7ffffff}}) {
    before_danger(std::string("enable a queue with ") + s.what);
    put(KZ_Q_CTRL, KZ_QCTRL_RESET);
    put(KZ_Q_SQ_LO, s.sq), put(KZ_Q_SQ_HI, s.sq >> 32);
    put(KZ_Q_CQ_LO, base + 4096), put(KZ_Q_CQ_HI, (base + 4096) >> 32);
    put(KZ_Q_DBREC_LO, base + 8192), put(KZ_Q_DBREC_HI, (base + 8192) >> 32);
    put(KZ_Q_ORDER, s.order), put(KZ_Q_VECTOR, s.vector), put(KZ_Q_CONTEXT, s.ctx);
    put(KZ_Q_CTRL, KZ_QCTRL_ENABLE);
    uint32_t state = 0;
    seen_within(1s, [&] {
      state = device().read_register(block_at + KZ_Q_STATE);
      return (state & 0xff) != KZ_QSTATE_OFF;
    });
    if ((state & 0xff) != KZ_QSTATE_ERROR || ((state >> 8) & 0xff) != KZ_QERR_BAD_CONFIG) {
      evidence(ev::status_wrong, {{"command", std::string("enable a queue with ") + s.what},
                                  {"expected", "BAD_CONFIG"},
                                  {"got", state}});
      ADD_FAILURE() << "a queue with " << s.what << " was enabled: state " << state;
    }
    run_good(*good, {cmd::Nop{}});
  }
  put(KZ_Q_CTRL, KZ_QCTRL_RESET);
}

}  // namespace kz::test
