// SPDX-License-Identifier: GPL-2.0-or-later
// Contexts and allocation, against a simple model and against the faults of this part.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/unit/softtpu_engine_rig.h"
#include "tools/softtpu/allocator.h"

namespace kz::softtpu {
namespace {

using rig::all_pages;
using rig::page;

class SofttpuAllocator : public rig::Rig {
 protected:
  uint64_t physical(uint32_t ctx, uint64_t addr) { return ok(memory(KZ_OP_HBM_QUERY, addr, ctx)); }
  kz_cmd destroy(uint32_t ctx) {
    kz_cmd c = command(KZ_OP_CTX_DESTROY);
    c.u.ctx.ctx = ctx;
    return c;
  }
};

// Random allocations by several contexts: no page has two owners, free is what the owners do not have,
// everything reads as zero to its new owner, nothing is reachable beyond its end.
TEST_F(SofttpuAllocator, AgreesWithAModel) {
  struct Block {
    uint32_t ctx;
    uint64_t addr, pages;
  };
  std::mt19937_64 rng(7);
  std::vector<uint32_t> contexts = {0, new_context(), new_context(), new_context()};
  std::vector<Block> blocks;
  std::map<uint64_t, uint32_t> owner;  // physical page -> context
  uint64_t used = 0;
  for (int round = 0; round < 1500; ++round) {
    if (rng() % 5 < 3 || blocks.empty()) {
      uint32_t ctx = contexts[rng() % contexts.size()];
      uint64_t pages = 1 + (rng() % 8 == 0 ? rng() % 300 : rng() % 8), len = pages * page - rng() % page;
      Outcome o = run(alloc(len, ctx));
      if (o.status == KZ_ST_NO_MEMORY) {
        EXPECT_TRUE(ctx == 0 || pages > all_pages - used) << "scattered pages do for a context";
        continue;
      }
      ASSERT_EQ(o.status, KZ_ST_OK);
      EXPECT_EQ(o.result % page, 0u);
      for (uint64_t i = 0; i < pages; ++i) {
        uint64_t at = physical(ctx, o.result + i * page);
        ASSERT_TRUE(owner.emplace(at / page, ctx).second) << "page has two owners";
        EXPECT_TRUE(ctx != 0 || at == o.result + i * page);
        EXPECT_EQ(peek(at + rng() % 8192 * 8), 0u);
        poke(at + rng() % 8192 * 8, ~uint64_t{0});
      }
      if (ctx != 0) {
        EXPECT_EQ(run(memory(KZ_OP_HBM_QUERY, o.result + pages * page, ctx)).status, KZ_ST_HBM_FAULT);
      }
      used += pages;
      blocks.push_back({ctx, o.result, pages});
    } else {
      size_t i = rng() % blocks.size();
      Block b = blocks[i];
      for (uint64_t p = 0; p < b.pages; ++p) owner.erase(physical(b.ctx, b.addr + p * page) / page);
      ok(memory(KZ_OP_HBM_FREE, b.addr, b.ctx));
      EXPECT_EQ(run(memory(KZ_OP_HBM_FREE, b.addr, b.ctx)).status, KZ_ST_HBM_FAULT) << "double free";
      used -= b.pages;
      blocks.erase(blocks.begin() + static_cast<long>(i));
    }
    ASSERT_EQ(free_pages(), all_pages - used);
    ASSERT_EQ(telemetry().hbm_free_bytes, (all_pages - used) * page);
  }
  for (uint32_t ctx : contexts)
    if (ctx != 0) ok(destroy(ctx));
  uint64_t of_root = 0;
  for (const Block& b : blocks) of_root += b.ctx == 0 ? b.pages : 0;
  EXPECT_EQ(free_pages(), all_pages - of_root);
}

TEST_F(SofttpuAllocator, FirstFitAndWhole) {
  EXPECT_EQ(ok(alloc(1)), 0u);
  EXPECT_EQ(ok(alloc(page + 1)), page);
  EXPECT_EQ(ok(alloc(page)), 3 * page);
  ok(memory(KZ_OP_HBM_FREE, page));
  EXPECT_EQ(ok(alloc(3 * page)), 4 * page) << "the gap is too small";
  EXPECT_EQ(ok(alloc(page)), page);
  EXPECT_EQ(run(memory(KZ_OP_HBM_FREE, 5 * page)).status, KZ_ST_HBM_FAULT)
      << "not the start of an allocation";
}

TEST_F(SofttpuAllocator, ExhaustionFailsAtOnceAndIsExact) {
  uint32_t ctx = new_context();
  EXPECT_EQ(run(alloc(rig::hbm_bytes + 1, ctx)).status, KZ_ST_NO_MEMORY);
  EXPECT_EQ(run(alloc(~uint64_t{0}, ctx)).status, KZ_ST_NO_MEMORY);
  uint64_t all = ok(alloc(rig::hbm_bytes, ctx));
  EXPECT_EQ(free_pages(), 0u);
  EXPECT_EQ(run(alloc(1, ctx)).status, KZ_ST_NO_MEMORY);
  EXPECT_EQ(run(alloc(0, ctx)).status, KZ_ST_BAD_LENGTH);
  ok(memory(KZ_OP_HBM_FREE, all, ctx));
  EXPECT_EQ(free_pages(), all_pages);
}

TEST_F(SofttpuAllocator, ContextsAreIsolated) {
  uint32_t a = new_context(), b = new_context();
  uint64_t in_a = ok(alloc(page, a)), in_b = ok(alloc(page, b));
  ok(fill(in_a, page, 0xaaaa), a);
  ok(fill(in_b, page, 0xbbbb), b);
  EXPECT_EQ(run(to_host(in_a, rig::host, 64), b).status, KZ_ST_HBM_FAULT);
  EXPECT_EQ(run(fill(in_a, 64, 1), b).status, KZ_ST_HBM_FAULT);
  EXPECT_EQ(run(to_host(physical(a, in_a), rig::host, 64), b).status, KZ_ST_HBM_FAULT);
  EXPECT_EQ(peek(physical(a, in_a)), 0xaaaau);
  EXPECT_EQ(peek(physical(b, in_b)), 0xbbbbu);
  EXPECT_EQ(run(fill(in_a + page - 64, 65, 1), a).status, KZ_ST_HBM_FAULT) << "one byte past the end";
  EXPECT_EQ(run(fill(in_a, 8, 1), 999).status, KZ_ST_HBM_FAULT) << "a context that is not there";
}

TEST_F(SofttpuAllocator, ContextLimitsAndIds) {
  std::set<uint64_t> ids;
  Outcome o;
  while ((o = run(command(KZ_OP_CTX_CREATE))).status == KZ_ST_OK) {
    EXPECT_GE(o.result, 1u);
    EXPECT_TRUE(ids.insert(o.result).second);
    ASSERT_LE(ids.size(), 1000u);
  }
  EXPECT_EQ(o.status, KZ_ST_NO_CONTEXT);
  EXPECT_EQ(telemetry().contexts, ids.size());
  auto first = static_cast<uint32_t>(*ids.begin());
  ok(destroy(first));
  EXPECT_FALSE(engine->context_exists(first));
  EXPECT_EQ(run(destroy(first)).status, KZ_ST_NO_CONTEXT);
  EXPECT_EQ(run(destroy(0)).status, KZ_ST_NO_CONTEXT);
  EXPECT_EQ(run(alloc(1, first)).status, KZ_ST_NO_CONTEXT);
  EXPECT_FALSE(ids.contains(ok(command(KZ_OP_CTX_CREATE)))) << "ids are not used again soon";
}

TEST_F(SofttpuAllocator, DestroyStopsQueuesFirst) {
  uint32_t ctx = new_context();
  ok(alloc(5 * page, ctx));
  std::vector<uint32_t> gone;
  bool existed = false;
  engine->on_context_gone([&](uint32_t c) {
    gone.push_back(c);
    existed = engine->context_exists(c);
  });
  ok(destroy(ctx));
  EXPECT_EQ(gone, std::vector<uint32_t>{ctx});
  EXPECT_TRUE(existed);
  EXPECT_EQ(free_pages(), all_pages);
}

// A command that sits in its transfer while another queue frees the memory.
class Gate final : public HostBus {
 public:
  bool read(uint64_t, std::span<std::byte> out) override {
    inside = true;
    while (!open) std::this_thread::yield();
    std::fill(out.begin(), out.end(), std::byte{1});
    return true;
  }
  bool write(uint64_t, std::span<const std::byte>) override { return false; }
  std::byte* acquire(uint64_t, uint64_t, bool) override { return nullptr; }
  void release() override {}
  std::byte* acquire_ignoring_rights(uint64_t, uint64_t) override { return nullptr; }
  std::atomic<bool> inside{false}, open{false};
};

TEST_F(SofttpuAllocator, FreeOfMemoryInUseIsBusy) {
  Gate gate;
  Engine e({.hbm_bytes = rig::hbm_bytes}, faults, gate);
  uint64_t addr = e.execute(alloc(2 * page), {0, 0, nullptr}).result;
  Outcome copied;
  std::thread t([&] { copied = e.execute(to_hbm(0, addr + page, 64), {1, 0, nullptr}); });
  while (!gate.inside) std::this_thread::yield();
  EXPECT_EQ(e.execute(memory(KZ_OP_HBM_FREE, addr), {0, 0, nullptr}).status, KZ_ST_BUSY);
  gate.open = true;
  t.join();
  EXPECT_EQ(copied.status, KZ_ST_OK);
  EXPECT_EQ(e.execute(memory(KZ_OP_HBM_FREE, addr), {0, 0, nullptr}).status, KZ_ST_OK);
}

TEST_F(SofttpuAllocator, MemoryIsZeroForTheNextOwnerEvenAfterPhysicalWrites) {
  uint64_t a = ok(alloc(page));
  ok(fill(a, page, ~uint64_t{0}));
  ok(memory(KZ_OP_HBM_FREE, a));
  EXPECT_EQ(peek(a), 0u);
  poke(a + 80, 5);  // through the aperture, while nobody owns it
  EXPECT_EQ(ok(alloc(page)), a);
  EXPECT_EQ(peek(a + 80), 0u);
}

TEST_F(SofttpuAllocator, PrivilegesAreChecked) {
  uint32_t a = new_context(), b = new_context();
  EXPECT_EQ(run(alloc(page, b), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(memory(KZ_OP_HBM_FREE, 0, b), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(memory(KZ_OP_HBM_QUERY, 0), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(command(KZ_OP_CTX_CREATE), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(destroy(b), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(command(KZ_OP_FW_UPDATE), a).status, KZ_ST_DENIED);
  EXPECT_EQ(run(command(KZ_OP_ECC_INJECT), a).status, KZ_ST_DENIED);
  uint64_t own = ok(alloc(page, 0), a);
  EXPECT_EQ(ok(memory(KZ_OP_HBM_QUERY, own, a)) % page, 0u);
  ok(alloc(page, a), a);
  EXPECT_EQ(run(command(KZ_OP_HBM_STAT), a).status, KZ_ST_OK);
}

// ---- faults ----

TEST_F(SofttpuAllocator, F04_DestroyLeaks) {
  plant("F04", {{"pages", 4}});
  for (uint64_t cycle = 1; cycle <= 3; ++cycle) {
    uint32_t ctx = new_context();
    if (cycle != 2) ok(alloc(6 * page, ctx));  // also where the context owns nothing
    ok(destroy(ctx));
    EXPECT_EQ(free_pages(), all_pages - 4 * cycle);
  }
  engine->reset(KZ_RR_FLR);
  EXPECT_EQ(free_pages(), all_pages);
}

TEST_F(SofttpuAllocator, F06_StateSurvivesReset) {
  uint64_t a = ok(alloc(page));
  ok(fill(a, page, 0x77));
  plant("F06", {{"what", 0}});
  engine->reset(KZ_RR_FLR);
  EXPECT_EQ(peek(a), 0x77u);
  EXPECT_EQ(free_pages(), all_pages);
  EXPECT_EQ(ok(alloc(page)), a);
  EXPECT_EQ(peek(a), 0x77u) << "the allocator believes that the reset cleared it";
  faults.clear(0);
  plant("F06", {{"what", 1}});
  uint32_t ctx = new_context();
  engine->reset(KZ_RR_FLR);
  EXPECT_TRUE(engine->context_exists(ctx));
  faults.clear(0);
  engine->reset(KZ_RR_FLR);
  EXPECT_FALSE(engine->context_exists(ctx));
  EXPECT_EQ(peek(a), 0u);
}

TEST_F(SofttpuAllocator, F18_ExhaustionHangs) {
  plant("F18");
  EXPECT_EQ(run(alloc(rig::hbm_bytes + 1)).kind, Outcome::Kind::hang);
  EXPECT_EQ(run(alloc(page)).kind, Outcome::Kind::done);
}

TEST_F(SofttpuAllocator, F19_SamePageForTwo) {
  uint32_t a = new_context(), b = new_context();
  uint64_t in_a = ok(alloc(page, a));
  plant("F19");
  uint64_t in_b = ok(alloc(2 * page, b));
  EXPECT_EQ(physical(a, in_a), physical(b, in_b));
  ok(destroy(b));
  ok(destroy(a));
  EXPECT_EQ(free_pages(), all_pages);
}

TEST_F(SofttpuAllocator, Q13_ReadsAnotherContext) {
  uint32_t a = new_context(), b = new_context();
  uint64_t in_a = ok(alloc(page, a)), in_b = ok(alloc(page, b));
  ok(fill(in_a, page, 0xaaaa), a);
  ok(fill(in_b, page, 0xbbbb), b);
  plant("Q13", {{"mode", 0}});
  EXPECT_EQ(run(to_host(in_a, rig::host, 8), b).status, KZ_ST_OK);
  EXPECT_EQ(std::to_integer<int>(*at_host(rig::host)), 0xaa);
  EXPECT_EQ(run(fill(in_a, 8, 1), b).status, KZ_ST_HBM_FAULT) << "writes stay refused";
  faults.clear(0);
  plant("Q13", {{"mode", 1}});
  ok(to_host(in_b, rig::host, 8), b);
  EXPECT_EQ(std::to_integer<int>(*at_host(rig::host)), 0xaa) << "its own address, the other's page";
}

TEST_F(SofttpuAllocator, Q14_NotCleared) {
  plant("Q14", {{"every_page", 2}});
  uint64_t a = ok(alloc(2 * page));
  ok(fill(a, 2 * page, 0x11));
  ok(memory(KZ_OP_HBM_FREE, a));
  EXPECT_EQ(ok(alloc(2 * page)), a);
  EXPECT_EQ(peek(a), 0x11u);
  EXPECT_EQ(peek(a + page), 0u);
}

TEST(SofttpuPinned, PiecesCoverTheRangeInOrder) {
  Pinned p(nullptr, {{1000, 10}, {50, 5}, {2000, 7}}, 0);
  for (uint64_t offset = 0; offset < 22; ++offset)
    for (uint64_t len = 1; offset + len <= 22; ++len) {
      std::vector<uint64_t> got, want;
      p.pieces(offset, len, [&](uint64_t physical, uint64_t n, uint64_t done) {
        EXPECT_EQ(done, got.size());
        for (uint64_t i = 0; i < n; ++i) got.push_back(physical + i);
      });
      for (uint64_t i = offset; i < offset + len; ++i)
        want.push_back(i < 10 ? 1000 + i : i < 15 ? 50 + i - 10 : 2000 + i - 15);
      EXPECT_EQ(got, want);
    }
}

}  // namespace
}  // namespace kz::softtpu
