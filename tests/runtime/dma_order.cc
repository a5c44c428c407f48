// SPDX-License-Identifier: GPL-2.0-or-later
// When the data is there, relative to its completion: not later, not twice, and not what was there before.
#include <algorithm>
#include <thread>

#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kBlock = 64 * 1024;

// Polls without sleeping, so that the moment of the completion is seen.
Completion spin(QueueGuard& queue, const Command& command) {
  const Ticket ticket = queue.submit(command);
  for (Deadline deadline(5s);;) {
    for (const auto& done : queue.poll())
      if (done.ticket == ticket) return done;
    if (deadline.passed()) queue.give_up(5s);
  }
}

void must_be_ok(const Completion& done, const char* name) {
  if (done.status != Status::ok)
    throw Error(
        {.code = Errc::status, .operation = name, .detail = report_status(name, Status::ok, done.status)});
}

}  // namespace

KZ_TEST(dma, visible_at_completion,
        {.meaning = "at the moment a copy's completion is seen its data is there, in the host and in HBM",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  auto context = device().create_context();
  auto writer = open_queue(*context, {.interrupts = false});
  auto reader = open_queue(*context, {.interrupts = false});
  HostArea from(device(), {.size = {kBlock}}), to(device(), {.size = {kBlock}});
  auto hbm = context->alloc({kBlock});
  std::vector<std::byte> want(kBlock), before(kBlock, std::byte{0xc3});
  for (uint32_t round = 0; round < 60; ++round) {
    const Payload payload{seed(), round};
    fill_payload(want, payload);
    std::ranges::copy(want, from.bytes().begin());
    std::ranges::copy(before, to.bytes().begin());
    must_be_ok(spin(*writer, {cmd::Copy{from.place(), at(hbm->addr()), kBlock}}), "COPY");
    // Another queue is not ordered behind the first but by this completion.
    must_be_ok(spin(*reader, {cmd::Copy{at(hbm->addr()), to.place(), kBlock}}), "COPY");
    const std::string bad = check_transfer(
        {.path = "host>hbm>host", .want = want, .got = to.bytes(), .before = before, .reread = [&] {
           must_be_ok(spin(*reader, {cmd::Copy{at(hbm->addr()), to.place(), kBlock}}), "COPY");
         }});
    ASSERT_EQ(bad, "") << "round " << round;
  }
}

KZ_TEST(dma, nothing_after_completion,
        {.meaning = "memory that was used again after a copy's completion is not written a second time",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  constexpr int kSlots = 8;
  auto context = device().create_context();
  auto queue = open_queue(*context);
  HostArea from(device(), {.size = {kBlock}}), to(device(), {.size = {kSlots * kBlock}});
  auto hbm = context->alloc({kSlots * kBlock});
  const std::vector<std::byte> own(kBlock, std::byte{0x77});
  for (uint32_t round = 0; round < 6; ++round) {
    fill_payload(from.bytes(), {seed(), round});
    for (int s = 0; s < kSlots; ++s) {
      run_good(*queue, {cmd::Copy{from.place(), at(hbm->addr() + s * kBlock), kBlock}});
      run_good(*queue, {cmd::Copy{at(hbm->addr() + s * kBlock), to.place(s * kBlock), kBlock}});
    }
    // The memory is ours again: host and HBM get other content, and must keep it.
    std::ranges::fill(to.bytes(), own[0]);
    for (int s = 0; s < kSlots; ++s)
      run_good(*queue, {cmd::Fill{at(hbm->addr() + s * kBlock), kBlock, 0x8888888888888888}});
    const auto start = Clock::now();
    uint64_t rewritten = 0;
    for (Deadline watch(40ms); !watch.passed() && !rewritten; std::this_thread::yield())
      rewritten = std::ranges::count_if(to.bytes(), [&](std::byte b) { return b != own[0]; });
    if (rewritten) {
      evidence(ev::data_rewritten,
               {{"after_ns", (Clock::now() - start) / 1ns}, {"bytes", rewritten}, {"path", "hbm>host"}});
      FAIL() << rewritten << " bytes of host memory were written after the completion";
    }
    read_into(*queue, hbm->addr(), to, kSlots * kBlock);
    // What an earlier copy brought has come again; anything else is this copy's own trouble.
    rewritten = 0;
    for (int s = 0; s < kSlots; ++s)
      for (uint64_t i = 0; i < kBlock; ++i) {
        const std::byte b = to.bytes()[s * kBlock + i];
        rewritten += b != std::byte{0x88} && b == from.bytes()[i];
      }
    if (rewritten > 16) {
      evidence(ev::data_rewritten,
               {{"after_ns", (Clock::now() - start) / 1ns}, {"bytes", rewritten}, {"path", "host>hbm"}});
      FAIL() << rewritten << " bytes of HBM changed after they were filled";
    }
    const std::vector<std::byte> filled(kSlots * kBlock, std::byte{0x88});
    ASSERT_EQ(check_transfer({.path = "hbm>host", .want = filled, .got = to.bytes(0, filled.size())}), "");
  }
}

KZ_TEST(dma, fresh_source,
        {.meaning = "a copy reads what its source holds now, not what an earlier copy read from there",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  auto context = device().create_context();
  auto queue = open_queue(*context);
  HostArea from(device(), {.size = {kBlock}}), to(device(), {.size = {kBlock}});
  auto hbm = context->alloc({kBlock});
  std::vector<std::byte> older(kBlock), want(kBlock);
  auto back = [&] { run_good(*queue, {cmd::Copy{at(hbm->addr()), to.place(), kBlock}}); };
  for (uint32_t round = 0; round < 48; ++round) {
    const uint64_t size = round % 2 ? kBlock : 4096 + round * 64;
    fill_payload(want, {seed(), round});
    std::ranges::copy(want, from.bytes().begin());
    auto all = [&] {
      run_good(*queue, {cmd::Copy{from.place(), at(hbm->addr()), size}});
      back();
    };
    all();
    const auto old = round ? std::span<const std::byte>(older).first(size) : std::span<const std::byte>();
    ASSERT_EQ(check_transfer({.path = "host>hbm>host",
                              .want = std::span(want).first(size),
                              .got = to.bytes(0, size),
                              .before = old,
                              .reread = back,
                              .again = all}),
              "")
        << "round " << round;
    // And the other way: HBM changes under a host buffer that was its copy.
    const uint64_t pattern = mix(seed(), round);
    run_good(*queue, {cmd::Fill{at(hbm->addr()), kBlock, pattern}});
    back();
    std::vector<std::byte> filled(kBlock);
    for (uint64_t i = 0; i < kBlock; i += 8) std::memcpy(&filled[i], &pattern, 8);
    ASSERT_EQ(check_transfer(
                  {.path = "hbm>host", .want = filled, .got = to.bytes(), .before = want, .reread = back}),
              "")
        << "round " << round;
    older = want;
  }
}

}  // namespace kz::test
