// SPDX-License-Identifier: GPL-2.0-or-later
// What one user of the device can see or touch of another: nothing.
#include <algorithm>
#include <map>
#include <numeric>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"
#include "tests/runtime/memory.h"

namespace kz::test {
namespace {

struct User {
  explicit User(Device& device) : context(device.create_context()), queue(open_queue(device, *context)) {}
  std::unique_ptr<Context> context;
  std::unique_ptr<QueueGuard> queue;
};

// Which of the last owner's pages these bytes are, if most of what is not zero is his.
std::optional<int> written_by_owner(std::span<const std::byte> bytes, uint64_t seed, int pages) {
  std::vector<std::byte> payload(bytes.size());
  const auto dirty = static_cast<int64_t>(bytes.size()) - std::ranges::count(bytes, std::byte{0});
  for (int i = 0; i < pages; ++i) {
    fill_payload(payload, {seed, static_cast<uint32_t>(i)});
    int64_t same = 0;
    for (size_t at = 0; at < bytes.size(); ++at)
      same += bytes[at] != std::byte{0} && bytes[at] == payload[at];
    if (same * 10 >= dirty * 9) return i;
  }
  return std::nullopt;
}

void isolation(const char* how, const std::string& text) {
  evidence(ev::isolation, {{"how", how}});
  ADD_FAILURE() << text;
}

}  // namespace

KZ_TEST(context, isolation,
        {.meaning =
             "a context can neither read nor write another's memory, by its address or by its physical place",
         .level = 4,
         .needs = {Cap::contexts, Cap::hbm_alloc, Cap::dma}}) {
  constexpr uint64_t kLen = 65536;
  constexpr int kBlocks = 4;
  User owner(device()), thief(device());
  if (!copies_arrive(device(), *owner.context, *owner.queue, rng()())) return;
  HostArea secret(device(), {.size = {kLen}}), seen(device(), {.size = {kLen}});
  std::vector<std::unique_ptr<HbmBlock>> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back(owner.context->alloc({kLen}));
    fill_payload(secret.bytes(), {seed(), static_cast<uint32_t>(i)});
    run_good(*owner.queue, {cmd::Copy{secret.place(), at(blocks[i]->addr()), kLen}});
  }
  auto own = thief.context->alloc({kLen});
  run_good(*thief.queue, {cmd::Fill{at(own->addr()), kLen, 0x7171717171717171}});
  for (int i = 0; i < kBlocks; ++i) {
    std::vector<HbmAddr> tries = {blocks[i]->addr()};
    if (caps().has(Cap::hbm_physical)) tries.push_back(device().physical(*owner.context, blocks[i]->addr()));
    for (HbmAddr addr : tries) {
      if (addr.value >= own->addr().value && addr.value < own->addr().value + kLen)
        continue;  // numerically its own
      std::ranges::fill(seen.bytes(), std::byte{0});
      const Completion read = run_one(*thief.queue, {cmd::Copy{at(addr), seen.place(), kLen}});
      const auto tag = read_tag(seen.bytes());
      if (tag && tag->seed == seed())
        isolation("read", "a context read the bytes of another");
      else if (read.status != Status::hbm_fault)
        isolation("read",
                  "reading another context's address ended with " + std::string(to_string(read.status)));
      if (run_one(*thief.queue, {cmd::Fill{at(addr), kLen, 0x6666666666666666}}).status != Status::hbm_fault)
        isolation("write", "writing another context's address was not refused");
    }
  }
  for (int i = 0; i < kBlocks; ++i) {
    read_into(*owner.queue, blocks[i]->addr(), seen, kLen);
    // Only the thief's own bytes say that it was the thief.
    if (std::ranges::count(seen.bytes(), std::byte{0x66}) > static_cast<int64_t>(kLen / 2)) {
      isolation("write", "the owner's bytes were changed");
      continue;
    }
    fill_payload(secret.bytes(), {seed(), static_cast<uint32_t>(i)});
    const std::string bad = read_and_check(*owner.queue, blocks[i]->addr(), seen, secret.bytes());
    if (!bad.empty()) ADD_FAILURE() << "the owner's bytes: " << bad;
  }
  // Each sees its own: the thief's page still holds what it wrote, not the owner's bytes.
  read_into(*thief.queue, own->addr(), seen, kLen);
  const auto tag = read_tag(seen.bytes());
  if (tag && tag->seed == seed()) isolation("read", "a context's own address shows another's bytes");
}

KZ_TEST(context, no_shared_page,
        {.meaning = "no physical page is given to two contexts, and each page keeps its owner's bytes",
         .level = 4,
         .needs = {Cap::contexts, Cap::hbm_alloc, Cap::dma}}) {
  constexpr int kPages = 96;
  const uint64_t page = caps().limits.hbm_page;
  User users[] = {User(device()), User(device()), User(device())};
  if (!copies_arrive(device(), *users[0].context, *users[0].queue, rng()())) return;
  HostArea host(device(), {.size = {4096}});
  std::vector<std::byte> want(4096);
  struct Owned {
    int user;
    std::unique_ptr<HbmBlock> block;
  };
  std::vector<Owned> pages;
  std::map<uint64_t, int> physical;
  for (int i = 0; i < kPages; ++i) {
    const int u = i % 3;
    pages.push_back({u, users[u].context->alloc({page})});
    fill_payload(host.bytes(), {seed(), static_cast<uint32_t>(i)});
    run_good(*users[u].queue, {cmd::Copy{host.place(), at(pages[i].block->addr()), 4096}});
    if (!caps().has(Cap::hbm_physical)) continue;
    const HbmAddr place = device().physical(*users[u].context, pages[i].block->addr());
    const auto [it, fresh] = physical.emplace(place.value, i);
    if (fresh) continue;
    evidence(ev::isolation, {{"how", "same_page"}, {"addr", place.value}});
    ADD_FAILURE() << "allocations " << it->second << " and " << i << " got the same page";
  }
  for (int i = 0; i < kPages; ++i) {
    QueueGuard& queue = *users[pages[i].user].queue;
    const HbmAddr here = pages[i].block->addr();
    read_into(queue, here, host, 4096);
    const auto tag = read_tag(host.bytes());
    const bool of_another = tag && tag->seed == seed() && tag->sequence != static_cast<uint32_t>(i) &&
                            pages[tag->sequence % kPages].user != pages[i].user;
    if (of_another) {
      evidence(ev::isolation, {{"how", "same_page"}, {"other", tag->sequence}});
      ADD_FAILURE() << "page " << i << " holds the bytes of page " << tag->sequence << " of another context";
      continue;
    }
    fill_payload(want, {seed(), static_cast<uint32_t>(i)});
    const std::string bad = read_and_check(queue, here, host, want);
    if (!bad.empty()) ADD_FAILURE() << "page " << i << ": " << bad;
  }
}

KZ_TEST(
    context, freed_memory_is_cleared,
    {.meaning = "the next owner of freed memory finds zeroes, after a free and after the end of its context",
     .level = 4,
     .needs = {Cap::contexts, Cap::hbm_alloc, Cap::dma},
     .limit = 20s}) {
  if (!caps().limits.hbm_cleared) skip("the device does not promise cleared memory");
  constexpr int kPages = 24;
  const uint64_t page = caps().limits.hbm_page;
  // Somebody holds everything else, so that the next owner must get exactly the pages that were freed.
  User hog(device());
  if (!copies_arrive(device(), *hog.context, *hog.queue, rng()())) return;
  const auto rest = take_all_but(device(), *hog.context, kPages);
  HostArea host(device(), {.size = {page}});
  for (const char* after : {"free", "context"}) {
    auto owner = std::make_unique<User>(device());
    std::vector<std::unique_ptr<HbmBlock>> blocks;
    for (int i = 0; i < kPages; ++i) {
      blocks.push_back(owner->context->alloc({page}));
      fill_payload(host.bytes(), {seed(), static_cast<uint32_t>(i)});
      run_good(*owner->queue, {cmd::Copy{host.place(), at(blocks.back()->addr()), page}});
    }
    if (after == std::string("free")) {
      for (auto& block : blocks) EXPECT_EQ(block->free(), Status::ok);
    }
    User next(device());
    if (after == std::string("context")) {
      owner.reset();
      blocks.clear();
    }
    int dirty = 0;
    const std::vector<std::byte> zeroes(page);
    std::vector<std::unique_ptr<HbmBlock>> fresh;
    for (int i = 0; i < kPages; ++i) {
      fresh.push_back(next.context->alloc({page}));
      read_into(*next.queue, fresh.back()->addr(), host, page);
      if (std::ranges::equal(host.bytes(), zeroes)) continue;
      if (const auto owner_page = written_by_owner(host.bytes(), seed(), kPages)) {
        ++dirty;
        evidence(ev::hbm_not_cleared,
                 {{"after", after}, {"pattern", "the last owner's"}, {"page", *owner_page}});
      } else if (const std::string bad = read_and_check(*next.queue, fresh.back()->addr(), host, zeroes);
                 !bad.empty()) {
        ADD_FAILURE() << "a fresh page reads wrong, but not as its last owner left it: " << bad;
      }
    }
    if (dirty) ADD_FAILURE() << dirty << " of " << kPages << " pages were not cleared after " << after;
  }
}

KZ_TEST(context, privileges,
        {.meaning = "privileged commands from an ordinary context are denied",
         .level = 4,
         .needs = {Cap::contexts, Cap::raw_commands}}) {
  User user(device());
  auto block = user.context->alloc({caps().limits.hbm_page});
  for (uint8_t opcode :
       {KZ_OP_CTX_CREATE, KZ_OP_CTX_DESTROY, KZ_OP_HBM_QUERY, KZ_OP_FW_UPDATE, KZ_OP_ECC_INJECT}) {
    kz_cmd raw{};
    raw.opcode = opcode;
    if (opcode == KZ_OP_CTX_DESTROY) raw.u.ctx.ctx = user.context->id();
    if (opcode == KZ_OP_HBM_QUERY) raw.u.alloc.addr = block->addr().value;
    const Completion done = run_one(*user.queue, {cmd::Raw{raw}});
    if (done.status == Status::denied) continue;
    const std::string name = name_of(cmd::Raw{raw});
    if (done.status == Status::ok) evidence(ev::isolation, {{"how", "privileged"}, {"command", name}});
    ADD_FAILURE() << report_status(name + " from an ordinary context", Status::denied, done.status);
  }
  // Memory for somebody else is privileged too.
  User other(device());
  kz_cmd raw{};
  raw.opcode = KZ_OP_HBM_ALLOC;
  raw.u.alloc.len = caps().limits.hbm_page;
  raw.u.alloc.ctx = other.context->id();
  expect_status(*user.queue, {cmd::Raw{raw}}, Status::denied, "an allocation for another context");
}

}  // namespace kz::test
