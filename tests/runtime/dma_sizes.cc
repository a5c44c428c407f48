// SPDX-License-Identifier: GPL-2.0-or-later
// Every byte arrives, at every awkward size and alignment, and none beside it.
#include <algorithm>

#include "tests/harness/diagnose.h"
#include "tests/harness/pattern.h"
#include "tests/runtime/round_trip.h"

namespace kz::test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kLongest = 2 * kMiB + 8192;
constexpr uint64_t kSizes[] = {1,
                               2,
                               3,
                               7,
                               8,
                               31,
                               32,
                               63,
                               64,
                               65,
                               127,
                               4032,
                               4095,
                               4096,
                               4097,
                               8191,
                               65535,
                               65536,
                               65537,
                               kMiB - 1,
                               kMiB,
                               kMiB + 1,
                               kMiB + 64,
                               kMiB + 4097,
                               2 * kMiB - 1,
                               2 * kMiB,
                               2 * kMiB + 1,
                               2 * kMiB + 4097};

// After a few failures the picture is clear, and each costs time to diagnose.
constexpr int kEnough = 4;

bool enough() {
  return ::testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count() >= kEnough;
}

void run_all(RoundTrip& trip, const Route& route) {
  if (enough()) return;
  for (const auto& failure : trip.run(route))
    ADD_FAILURE() << failure << " (size " << route.size << ", offsets " << route.from << " > " << route.hbm
                  << " > " << route.second << " > " << route.to << ")";
}

uint64_t draw(std::mt19937_64& rng, uint64_t low, uint64_t high) {
  return std::uniform_int_distribution<uint64_t>(low, high)(rng);
}

}  // namespace

KZ_TEST(dma, sizes,
        {.meaning =
             "bytes survive host > HBM > HBM > host at every awkward size, and nothing beside them changes",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc},
         .limit = 30s}) {
  RoundTrip trip(device(), kLongest, rng()());
  for (uint64_t size : kSizes)
    if (size <= caps().limits.max_transfer) run_all(trip, {.size = size, .two_hops = size <= kMiB + 1});
}

KZ_TEST(dma, unaligned,
        {.meaning = "bytes survive whatever the alignment of source and destination",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc},
         .limit = 30s}) {
  RoundTrip trip(device(), kMiB + 8192, rng()());
  for (int i = 0; i < 60; ++i) {
    const uint64_t size = i % 3 == 0   ? draw(rng(), 1, 200)
                          : i % 3 == 1 ? draw(rng(), 3900, 4300)
                                       : draw(rng(), 1, 70000);
    run_all(trip, {.size = size,
                   .from = draw(rng(), 0, 130),
                   .hbm = draw(rng(), 0, 130),
                   .second = draw(rng(), 0, 130),
                   .to = draw(rng(), 0, 130),
                   .two_hops = i % 2 == 0});
  }
  for (uint64_t size : {kMiB - 3, kMiB, kMiB + 5})
    run_all(trip,
            {.size = size, .from = draw(rng(), 1, 63), .hbm = draw(rng(), 1, 63), .to = draw(rng(), 1, 63)});
}

KZ_TEST(dma, by_message,
        {.meaning = "buffers that are reached by messages get the same bytes as shared memory",
         .level = 2,
         .needs = {Cap::dma, Cap::hbm_alloc}}) {
  RoundTrip trip(device(), 300000, rng()(), {.by_message = true});
  for (uint64_t size : {1, 63, 64, 65, 4096, 65535, 65536, 65537, 200000, 262144 + 3})
    run_all(trip,
            {.size = size, .from = draw(rng(), 0, 99), .hbm = draw(rng(), 0, 99), .to = draw(rng(), 0, 99)});
}

namespace {

// Host memory cut into pieces with gaps, in an order that is not the order of their addresses.
struct Pieces {
  std::vector<kz_sge> list;
  std::vector<std::pair<uint64_t, uint32_t>> where;  // offset in the area, length
  uint64_t total = 0;
};

Pieces cut(std::mt19937_64& rng, const HostArea& area, uint64_t room, int count, bool equal) {
  Pieces p;
  const uint64_t slot = room / count;
  std::vector<uint64_t> slots(count);
  for (int i = 0; i < count; ++i) slots[i] = i;
  std::shuffle(slots.begin(), slots.end(), rng);
  for (int i = 0; i < count; ++i) {
    const auto len = static_cast<uint32_t>(equal ? slot / 2 : draw(rng, 1, slot - 160));
    const uint64_t offset = slots[i] * slot + draw(rng, 0, 63);
    p.list.push_back({area.iova(offset).value, len, 0});
    p.where.emplace_back(offset, len);
    p.total += len;
  }
  return p;
}

// Runs `visit` over every piece with its place in the flat data.
template <class Visit>
void each_piece(const Pieces& p, Visit visit) {
  uint64_t flat = 0;
  for (const auto& [offset, len] : p.where) {
    visit(offset, len, flat);
    flat += len;
  }
}

}  // namespace

KZ_TEST(dma, scatter_gather,
        {.meaning = "pieces of odd sizes in any order are gathered and scattered in theirs, with nothing "
                    "between them touched",
         .level = 2,
         .needs = {Cap::dma_sg, Cap::hbm_alloc},
         .limit = 20s}) {
  constexpr uint64_t kRoom = 256 * 1024;
  auto context = device().create_context();
  auto queue = open_queue(*context);
  HostArea area(device(), {.size = {kRoom}}), flat(device(), {.size = {kRoom}}),
      table(device(), {.size = {KZ_SG_MAX * sizeof(kz_sge)}});
  auto hbm = context->alloc({kRoom});
  std::vector<std::byte> want(kRoom), seen(kRoom);
  for (int round = 0; round < 24 && !enough(); ++round) {
    static constexpr int kCounts[] = {1, 2, 3, 7, 16, 31, 64, 255};
    const Pieces p = cut(rng(), area, kRoom, kCounts[round % 8], round % 3 == 0);
    std::memcpy(table.bytes().data(), p.list.data(), p.list.size() * sizeof(kz_sge));
    const Place list = at_sg(table.iova(), static_cast<uint16_t>(p.list.size()));
    const Payload payload{rng()(), static_cast<uint32_t>(round)};
    const auto data = std::span(want).first(p.total);
    fill_payload(data, payload);

    // Gather: pieces > HBM > flat.
    std::ranges::fill(area.bytes(), HostArea::kGuardByte);
    each_piece(p, [&](uint64_t offset, uint32_t len, uint64_t at) {
      std::ranges::copy(data.subspan(at, len), area.bytes(offset, len).begin());
    });
    auto gather = [&] {
      run_good(*queue, {cmd::Copy{list, at(hbm->addr()), p.total}});
      run_good(*queue, {cmd::Copy{at(hbm->addr()), flat.place(), p.total}});
    };
    std::ranges::fill(flat.bytes(), std::byte{0xc3});
    gather();
    std::string bad =
        check_transfer({.path = "sg", .want = data, .got = flat.bytes(0, p.total), .again = gather});
    if (!bad.empty()) ADD_FAILURE() << "gather of " << p.list.size() << " pieces: " << bad;

    // Scatter: flat > HBM > pieces.
    std::ranges::copy(data, flat.bytes().begin());
    std::ranges::fill(area.bytes(), HostArea::kGuardByte);
    run_good(*queue, {cmd::Copy{flat.place(), at(hbm->addr()), p.total}});
    run_good(*queue, {cmd::Copy{at(hbm->addr()), list, p.total}});
    std::vector<bool> owned(kRoom);
    const auto got = std::span(seen).first(p.total);
    each_piece(p, [&](uint64_t offset, uint32_t len, uint64_t at) {
      std::ranges::copy(area.bytes(offset, len), got.subspan(at, len).begin());
      std::fill_n(owned.begin() + static_cast<ptrdiff_t>(offset), len, true);
    });
    bad = check_transfer({.path = "sg", .want = data, .got = got});
    if (!bad.empty()) ADD_FAILURE() << "scatter to " << p.list.size() << " pieces: " << bad;
    uint64_t spilled = 0;
    for (uint64_t i = 0; i < kRoom; ++i) spilled += !owned[i] && area.bytes()[i] != HostArea::kGuardByte;
    if (spilled) evidence(ev::guard_overwritten, {{"where", "after"}, {"bytes", spilled}, {"path", "sg"}});
    EXPECT_EQ(spilled, 0u) << "bytes between the pieces were written";
  }
}

}  // namespace kz::test
