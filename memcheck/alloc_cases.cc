// SPDX-License-Identifier: GPL-2.0-or-later
// The HBM allocator: full and back, refusals, isolation of pages, cleared pages.
#include <fmt/format.h>

#include "memcheck/arena.h"
#include "memcheck/march_run.h"
#include "tests/harness/diagnose.h"
#include "shim/base/host_load.h"
#include "tests/harness/test.h"

namespace kz::memcheck {
namespace {

using namespace test;

const std::vector<Cap> alloc_caps = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::telemetry};

uint64_t free_bytes(Device& device) { return device.telemetry().hbm_free.value_or(0); }

// Telemetry follows the allocator with the firmware's beat at the latest.
uint64_t free_when(Device& device, uint64_t want) {
  uint64_t now = 0;
  seen_within(1s, [&] { return (now = free_bytes(device)) == want; });
  return now;
}

void alloc_wrong(const std::string& asked, const std::string& expected, const std::string& got) {
  evidence(ev::alloc_wrong, {{"asked", asked}, {"expected", expected}, {"got", got}});
  ADD_FAILURE() << "allocating " << asked << " ended with " << got << ", not with " << expected;
}

void report_silence(Device& device, const Error& e, const std::string& after) {
  report_stall(device, {.command = "HBM_ALLOC", .after = after, .budget = 5s});
  ADD_FAILURE() << e.what();
}

// An allocation that cannot succeed must say so, at once.
void refuse(Device& device, Context& context, uint64_t size, const std::string& what) {
  Deadline at_once(2s);
  try {
    auto block = context.alloc({size});
    alloc_wrong(what, "no_memory", "success");
  } catch (const Error& e) {
    if (e.code() == Errc::timeout) return report_silence(device, e, "oversize");
    if (e.code() != Errc::no_memory && e.code() != Errc::status) throw;
    if (at_once.passed())
      alloc_wrong(what, "no_memory at once", "no_memory after " + kz::to_string(at_once.elapsed()));
  }
}

KZ_TEST(hbm_alloc, until_full_and_back,
        {.meaning = "HBM can be had to the last page, is refused after that, and all of it comes back",
         .level = 4,
         .labels = {"destructive"},
         .needs = alloc_caps,
         .limit = 30s}) {
  uint64_t page = caps().limits.hbm_page, base = free_bytes(device());
  for (uint64_t unit : {base / 16 / page * page, base / 256 / page * page + page}) {
    auto context = device().create_context();
    std::vector<std::unique_ptr<HbmBlock>> blocks;
    uint64_t had = 0;
    before_danger("allocate all of HBM");
    for (bool full = false; !full;) {
      try {
        blocks.push_back(context->alloc({unit}));
        had += blocks.back()->size();
        ASSERT_LE(had, base) << "more was handed out than is there";
      } catch (const Error& e) {
        if (e.code() == Errc::timeout) return report_silence(device(), e, "valid");
        if (e.code() != Errc::no_memory) throw;
        full = true;
      }
    }
    if (had + unit <= base)
      alloc_wrong(to_string(Bytes{unit}) + " pieces", to_string(Bytes{base}), to_string(Bytes{had}));
    refuse(device(), *context, unit, "one piece too many");
    // Every second one back and taken again: fragments are as good as the whole.
    for (size_t i = 0; i < blocks.size(); i += 2) EXPECT_EQ(blocks[i]->free(), Status::ok);
    for (size_t i = 0; i < blocks.size(); i += 2) blocks[i] = context->alloc({unit});
    for (auto& b : blocks) EXPECT_EQ(b->free(), Status::ok);
    uint64_t now = free_when(device(), base);
    if (now == base) continue;
    evidence(ev::hbm_leak, {{"bytes", base - now}, {"cycles", 1}, {"slope_bytes_per_cycle", base - now}});
    ADD_FAILURE() << base - now << " bytes did not come back";
    return;
  }
}

KZ_TEST(hbm_alloc, refuses_at_once,
        {.meaning = "allocations beyond HBM fail at once and leave the context usable",
         .level = 4,
         .labels = {"destructive"},
         .needs = alloc_caps,
         .limit = 60s}) {
  auto context = device().create_context();
  uint64_t page = caps().limits.hbm_page;
  for (uint64_t size : {free_bytes(device()) + page, caps().limits.hbm_bytes * 2, uint64_t{1} << 62}) {
    before_danger("allocate more HBM than there is");
    refuse(device(), *context, size, to_string(Bytes{size}));
    if (HasFailure()) return;
  }
  auto block = context->alloc({page});
  EXPECT_EQ(block->size(), page);
  EXPECT_EQ(block->free(), Status::ok);
}

KZ_TEST(hbm_alloc, sizes_and_alignment,
        {.meaning = "sizes round up to pages, addresses are page-aligned, blocks do not overlap",
         .level = 2,
         .needs = alloc_caps,
         .limit = 10s}) {
  auto context = device().create_context();
  uint64_t page = caps().limits.hbm_page;
  std::vector<std::unique_ptr<HbmBlock>> blocks;
  for (uint64_t size : {uint64_t{1}, page - 1, page, page + 1, 3 * page, 16 * page - 1}) {
    auto block = context->alloc({size});
    EXPECT_EQ(block->size(), align_up(size, page)) << "for " << size;
    EXPECT_EQ(block->addr().value % page, 0u) << "for " << size;
    for (const auto& other : blocks)
      EXPECT_TRUE(block->addr().value + block->size() <= other->addr().value ||
                  other->addr().value + other->size() <= block->addr().value)
          << "two blocks overlap";
    blocks.push_back(std::move(block));
  }
}

KZ_TEST(hbm_alloc, bad_frees_refused,
        {.meaning = "double free, foreign, inner and unknown addresses are refused and free nothing",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::telemetry, Cap::dma},
         .limit = 20s}) {
  uint64_t page = caps().limits.hbm_page;
  auto mine = device().create_context(), other = device().create_context();
  auto block = mine->alloc({4 * page}), spare = mine->alloc({page});
  HbmAddr gone = spare->addr();
  EXPECT_EQ(spare->free(), Status::ok);
  uint64_t before = free_when(device(), free_bytes(device()));
  auto refused = [&](Context& context, HbmAddr addr, const std::string& what) {
    before_danger(what);
    Status got = context.free_raw(addr);
    if (got == Status::hbm_fault || got == Status::bad_field || got == Status::misaligned) return;
    evidence(ev::alloc_wrong, {{"asked", what}, {"expected", "refusal"}, {"got", to_string(got)}});
    ADD_FAILURE() << what << " ended with " << to_string(got);
  };
  refused(*mine, gone, "double free");
  refused(*other, block->addr(), "free of another context's block");
  refused(*mine, block->addr() + page, "free of a block's second page");
  refused(*mine, block->addr() + 8, "free of an unaligned address");
  refused(*mine, {caps().limits.hbm_bytes * 4}, "free beyond HBM");
  EXPECT_EQ(free_when(device(), before), before) << "a refused free changed the free count";
  auto queue = open_queue(*mine);
  EXPECT_EQ(run_one(*queue, {cmd::Fill{at(block->addr()), block->size(), 1}}).status, Status::ok)
      << "the block is not usable any more";
}

KZ_TEST(hbm_alloc, pages_not_shared,
        {.meaning = "two contexts that fill HBM between them never get the same page",
         .level = 4,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::telemetry, Cap::march},
         .limit = 30s}) {
  uint64_t share = static_cast<uint64_t>(64 * scale()) << 20;
  uint64_t half = std::min(free_bytes(device()) / 2, share);
  Arena a(device(), Bytes{half}), b(device(), Bytes{half});
  MarchRunner on_a(a), on_b(b);
  constexpr uint64_t tag_a = 0xaaaa000000000000, tag_b = 0xbbbb000000000000;
  MarchTest write = parse_march("tag", "⇕w0");
  MarchTest check{.name = "check", .elements = {{.order = Order::up, .ops = {MarchOp::r0}}}};
  on_a.run(write, {tag_a, true}, a.regions());
  on_b.run(write, {tag_b, true}, b.regions());
  for (auto [runner, arena, tag, foreign] :
       {std::tuple{&on_a, &a, tag_a, tag_b}, {&on_b, &b, tag_b, tag_a}}) {
    auto out = runner->run(check, {tag, true}, arena->regions());
    if (out.clean()) continue;
    bool others = !out.hits.empty() && (out.hits.front().read >> 48) == (foreign >> 48);
    if (others)
      evidence(ev::isolation, {{"how", "same_page"},
                               {"addr", fmt::format("0x{:x}", arena->physical(out.hits.front().addr))},
                               {"words", out.mismatches}});
    ADD_FAILURE() << fmt::format("{} words of one context hold {}", out.mismatches,
                                 others ? "what another context wrote to its own page" : "something else");
    if (!others) {
      evidence(ev::march_mismatch, {{"test", "pages_not_shared"},
                                    {"count", out.mismatches},
                                    {"shape", "scattered"},
                                    {"addr", out.hits.empty() ? 0 : arena->physical(out.hits.front().addr)}});
    }
    return;
  }
}

// Dirties memory in one context, gives it up in the given way, and looks at all of HBM in the next owner's
// hands.
void check_cleared(Device& device, bool destroy_context, uint64_t bytes) {
  auto first = device.create_context();
  {
    auto block = first->alloc({bytes});
    auto queue = open_queue(device, *first);
    run_ok(*queue, {cmd::Fill{at(block->addr()), block->size(), 0x5ec7e75ec7e75ec7}});
    if (!destroy_context) {
      EXPECT_EQ(block->free(), Status::ok);
    }
    queue.reset();
    if (destroy_context) first.reset();  // the block's pages go with their context
  }
  Arena next(device, Bytes{bytes * 2});
  MarchRunner runner(next);
  MarchTest zero{.name = "zero", .elements = {{.order = Order::up, .ops = {MarchOp::r0}}}};
  auto out = runner.run(zero, {}, next.regions());
  if (out.mismatches == 0) return;
  bool ours = !out.hits.empty() && out.hits.front().read == 0x5ec7e75ec7e75ec7;
  evidence(ev::hbm_not_cleared,
           {{"pattern", ours ? "previous owner's" : "unknown"},
            {"after", destroy_context ? "context" : "free"},
            {"words", out.mismatches},
            {"read", out.hits.empty() ? "" : fmt::format("0x{:x}", out.hits.front().read)}});
  ADD_FAILURE() << out.mismatches << " words of a new owner's HBM are not zero"
                << (ours ? ": they hold what the previous owner wrote" : "");
}

KZ_TEST(hbm_alloc, cleared_for_next_owner,
        {.meaning = "freed HBM, and HBM of a destroyed context, reads as zero for its next owner",
         .level = 4,
         .needs = {Cap::queues, Cap::contexts, Cap::hbm_alloc, Cap::telemetry, Cap::march, Cap::dma},
         .limit = 30s}) {
  if (!caps().limits.hbm_cleared) skip("the device does not promise to clear HBM");
  uint64_t bytes = std::min(free_bytes(device()) / 2, uint64_t{32} << 20);
  for (bool destroy : {false, true}) {
    check_cleared(device(), destroy, bytes);
    if (HasFailure()) return;
  }
}

KZ_TEST(hbm_alloc, cycles_leak_nothing,
        {.meaning = "contexts that are destroyed with their HBM leave nothing behind, cycle after cycle",
         .level = 3,
         .needs = alloc_caps,
         .limit = 30s}) {
  uint64_t page = caps().limits.hbm_page, base = free_bytes(device());
  auto cycles = static_cast<unsigned>(50 * scale());
  for (unsigned i = 0; i < cycles; ++i) {
    auto context = device().create_context();
    std::vector<std::unique_ptr<HbmBlock>> blocks;
    for (int n = 0; n < 4; ++n) blocks.push_back(context->alloc({page * (1 + rng()() % 32)}));
    context.reset();
  }
  uint64_t now = free_when(device(), base);
  if (now == base) return;
  auto lost = static_cast<double>(base) - static_cast<double>(now);
  evidence(ev::hbm_leak, {{"bytes", lost}, {"cycles", cycles}, {"slope_bytes_per_cycle", lost / cycles}});
  ADD_FAILURE() << lost << " bytes of HBM are gone after " << cycles << " contexts";
}

}  // namespace
}  // namespace kz::memcheck
