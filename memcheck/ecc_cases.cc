// SPDX-License-Identifier: GPL-2.0-or-later
// ECC: planted errors are corrected or poisoned, counted on their channel, and bad pages leave for good.
#include <fmt/format.h>

#include <cstring>

#include "memcheck/arena.h"
#include "shim/base/host_load.h"
#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

using namespace test;

struct Counters {
  std::vector<uint32_t> ce, ue;
};

// Telemetry follows an event at once or with the firmware's next beat (100 ms): waits until `done` or 1 s.
template <class Done>
Counters counters_when(Device& device, Done done) {
  Counters c;
  seen_within(1s, [&] {
    Telemetry t = device.telemetry();
    c = {t.ecc_ce, t.ecc_ue};
    return done(c);
  });
  return c;
}

Counters counters(Device& device) {
  return counters_when(device, [](const Counters&) { return true; });
}

uint32_t channel_of(Device& device, uint64_t physical) {
  return kz_hbm_split(physical, *device.capabilities().limits.hbm_geometry).channel;
}

// One page whose words hold their own address, written and read by MARCH commands: nothing but memory is on
// the way.
class Page {
 public:
  Page(Device& device, Context& context)
      : size_(device.capabilities().limits.hbm_page),
        block_(context.alloc({size_})),
        queue_(open_queue(device, context)),
        root_(open_queue(device, device.root_context())),
        physical_(device.physical(context, block_->addr()).value) {
    EXPECT_EQ(march(0, size_, MarchOp::w0).status, Status::ok);
  }

  uint64_t size() const { return size_; }
  uint64_t physical(uint64_t offset) const { return physical_ + offset; }
  HbmBlock& block() { return *block_; }

  void inject(uint64_t offset, bool uncorrectable) {
    run_ok(*root_, {cmd::EccInject{{physical(offset)}, uncorrectable}});
  }
  // The result counts the words that are wrong.
  Completion read(uint64_t offset, uint64_t len) { return march(offset, len, MarchOp::r0); }
  // Through the DMA engine, for its status.
  Status copy_out(uint64_t offset, uint64_t len, DmaBuffer& host) {
    return run_one(*queue_, {cmd::Copy{at(block_->addr() + offset), at(host.iova()), len}}).status;
  }

 private:
  Completion march(uint64_t offset, uint64_t len, MarchOp op) {
    return run_one(*queue_, {cmd::March{.addr = block_->addr() + offset,
                                        .len = len,
                                        .ops = {op},
                                        .own_address = true,
                                        .pattern = 0x5a5aa5a50f0ff0f0}});
  }

  uint64_t size_;
  std::unique_ptr<HbmBlock> block_;
  std::unique_ptr<QueueGuard> queue_, root_;
  uint64_t physical_;
};

// Data that must be good.
void expect_good(Page& page, uint64_t offset, uint64_t len, const char* what) {
  Completion done = page.read(offset, len);
  EXPECT_EQ(done.status, Status::ok) << what;
  EXPECT_EQ(done.result, 0u) << what << ": wrong words";
}

// Judges what one planted error did to the counters.
void judge_counters(const Counters& before, const Counters& after, uint32_t channel, bool uncorrectable) {
  const char* what = uncorrectable ? "ue" : "ce";
  for (uint32_t ch = 0; ch < after.ce.size(); ++ch) {
    for (bool ue : {false, true}) {
      const auto& was = ue ? before.ue : before.ce;
      const auto& is = ue ? after.ue : after.ce;
      uint32_t delta = is[ch] - was[ch];
      uint32_t want = ch == channel && ue == uncorrectable;
      if (delta == want) continue;
      evidence(ev::ecc, {{"what", delta == 0 ? "counter_stuck" : "counter_wrong"},
                         {"channel", ch},
                         {"delta", delta},
                         {"expected", want},
                         {"injected", what}});
      ADD_FAILURE() << fmt::format(
          "one {} planted on channel {}: the {} counter of channel {} moved by {}, not {}", what, channel,
          ue ? "ue" : "ce", ch, delta, want);
    }
  }
}

KZ_TEST(hbm_ecc, correctable_counted,
        {.meaning = "one flipped bit on each channel: data good, counted once, on that channel",
         .level = 2,
         .needs = {Cap::ecc, Cap::ecc_inject, Cap::telemetry, Cap::hbm_physical, Cap::hbm_alloc, Cap::march},
         .limit = 30s}) {
  if (!caps().limits.hbm_geometry) block("the device does not tell which channel an address is on");
  expect_ecc();
  auto context = device().create_context();
  Page page(device(), *context);
  uint32_t channels = 1u << KZ_GEOM_CH(*caps().limits.hbm_geometry);
  for (uint32_t n = 0; n < channels && !HasFailure(); ++n) {
    uint64_t offset = n * 64 + rng()() % 8 * 8;
    uint32_t channel = channel_of(device(), page.physical(offset));
    Counters before = counters(device());
    page.inject(offset, false);
    Completion read = page.read(offset, 8);
    EXPECT_EQ(read.status, Status::ok);
    if (read.result > 0) {
      evidence(ev::ecc, {{"what", "miscorrected"}, {"channel", channel}, {"delta", 1}});
      ADD_FAILURE() << "a single flipped bit was not corrected";
    }
    Counters after =
        counters_when(device(), [&](const Counters& c) { return c.ce[channel] != before.ce[channel]; });
    judge_counters(before, after, channel, false);
    expect_good(page, 0, page.size(), "data around the corrected word");
  }
}

KZ_TEST(hbm_ecc, uncorrectable_poisons,
        {.meaning = "two flipped bits: only who reads them gets poison, counted once; the page is retired "
                    "and never seen again",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::ecc, Cap::ecc_inject, Cap::telemetry, Cap::hbm_physical, Cap::hbm_alloc, Cap::march,
                   Cap::dma},
         .limit = 30s}) {
  Telemetry start = device().telemetry();
  if (start.pages_retired && start.pages_retire_max && *start.pages_retired + 1 >= *start.pages_retire_max)
    block(fmt::format("{} of {} pages are retired already: none to spare for this test", *start.pages_retired,
                      *start.pages_retire_max));
  if (!caps().limits.hbm_geometry) block("the device does not tell which channel an address is on");
  expect_ecc();
  expect_hbm_use();
  uint64_t retired;
  {
    auto context = device().create_context();
    auto other = device().create_context();
    Page page(device(), *context), bystander(device(), *other);
    uint64_t offset = 4096 + rng()() % 64 * 64;
    retired = page.physical(0);
    uint32_t channel = channel_of(device(), page.physical(offset));
    Counters before = counters(device());
    before_danger("plant an uncorrectable error");
    page.inject(offset, true);
    expect_good(bystander, 0, bystander.size(), "another context's page");
    expect_good(page, 0, 4096, "data beside the bad line");
    auto host = device().dma_buffer({.size = {64}});
    Status status = page.copy_out(offset, 64, *host);
    if (status != Status::poison) {
      evidence(ev::ecc,
               {{"what", "miscorrected"}, {"channel", channel}, {"delta", 0}, {"status", to_string(status)}});
      ADD_FAILURE() << "a read of a word with two flipped bits ended with " << to_string(status);
    }
    Counters after =
        counters_when(device(), [&](const Counters& c) { return c.ue[channel] != before.ue[channel]; });
    judge_counters(before, after, channel, true);
    EXPECT_EQ(page.block().free(), Status::ok);
  }
  Arena all(device());
  uint64_t page = caps().limits.hbm_page;
  constexpr uint64_t most_queries = 32768;
  uint64_t pages = 0;
  for (const Region& r : all.regions())
    for (uint64_t at = 0; at < r.size && pages < most_queries; at += page, ++pages)
      if (all.physical(r.addr.value + at) == retired) {
        evidence(ev::retired_reused, {{"addr", fmt::format("0x{:x}", retired)}});
        ADD_FAILURE() << fmt::format("page 0x{:x} had an uncorrectable error and was handed out again",
                                     retired);
      }
  Telemetry end = device().telemetry();
  EXPECT_EQ(end.pages_retired.value_or(0), start.pages_retired.value_or(0) + 1);
}

KZ_TEST(hbm_ecc, quiet,
        {.meaning = "writing and reading HBM counts no ECC error of its own",
         .level = 2,
         .needs = {Cap::ecc, Cap::telemetry, Cap::hbm_alloc, Cap::crc32c},
         .limit = 30s}) {
  expect_ecc();
  Arena arena(device());
  Counters before = counters(device());
  for (const Region& r : arena.spread(static_cast<uint64_t>(128 * scale()) << 20, uint64_t{4} << 20)) {
    run_ok(arena.queue(), {cmd::Fill{at(r.addr), r.size, 0x0123456789abcdef}});
    run_ok(arena.queue(), {cmd::Crc32c{at(r.addr), r.size}});
  }
  Counters after = counters_when(device(), [&](const Counters& c) { return c.ce != before.ce; });
  for (size_t ch = 0; ch < after.ce.size(); ++ch) {
    uint32_t ce = after.ce[ch] - before.ce[ch], ue = after.ue[ch] - before.ue[ch];
    if (ce == 0 && ue == 0) continue;
    evidence(ev::ecc, {{"what", ue > 0 ? "ue" : "ce"}, {"channel", ch}, {"delta", ue > 0 ? ue : ce}});
    if (ue > 0)
      ADD_FAILURE() << fmt::format("{} uncorrectable errors on channel {} in plain use", ue, ch);
    else
      warn(fmt::format("{} corrected errors on channel {} in plain use", ce, ch));
  }
}

}  // namespace
}  // namespace kz::memcheck
