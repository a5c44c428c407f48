// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/iova.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "shim/base/error.h"
#include "shim/tpu/dma.h"
#include "tests/unit/code_of.h"

namespace kz {
namespace {

constexpr uint64_t page = 4096;
constexpr uint64_t four_gib = uint64_t{1} << 32;

TEST(IovaAllocator, GivesWholePagesFromTheBottom) {
  IovaAllocator a(0x10000, 0x20000);
  EXPECT_EQ(a.take(1).value, 0x10000u);
  EXPECT_EQ(a.take(4097).value, 0x11000u);
  EXPECT_EQ(a.take(4096).value, 0x13000u);
  a.give_back({0x11000});
  EXPECT_EQ(a.take(8192).value, 0x11000u) << "the hole fits exactly";
  EXPECT_EQ(a.take(0xc000).value, 0x14000u) << "up to the last page";
  EXPECT_EQ(code_of([&] { a.take(1); }), Errc::no_memory);
}

TEST(IovaAllocator, LeavesAGapOnBothSides) {
  IovaAllocator a(0x10000, 0, page);
  uint64_t first = a.take(page).value, second = a.take(page).value;
  EXPECT_EQ(second - first, 2 * page);
  a.take_at({0x20000}, page);
  // Room for five pages before it, with a gap behind and in front: 0x14000 .. 0x1f000.
  EXPECT_EQ(a.take(11 * page).value, 0x14000u);
  EXPECT_GE(a.take(page).value, 0x22000u);
}

TEST(IovaAllocator, GivesExactAddressesOnce) {
  IovaAllocator a(0x10000, 0);
  EXPECT_EQ(a.take_at({four_gib - page}, 2 * page).value, four_gib - page) << "across the 4 GiB line";
  EXPECT_EQ(code_of([&] { a.take_at({four_gib}, page); }), Errc::busy);
  EXPECT_EQ(code_of([&] { a.take_at({four_gib - 2 * page}, 2 * page); }), Errc::busy);
  EXPECT_EQ(a.take_at({four_gib - 2 * page}, page).value, four_gib - 2 * page);
  EXPECT_EQ(a.take_at({four_gib + page}, page).value, four_gib + page);
  EXPECT_EQ(a.take_at({0}, page).value, 0u) << "below what take() gives";
  EXPECT_EQ(a.take_at({UINT64_MAX - page + 1}, page).value, UINT64_MAX - page + 1)
      << "the last page there is";
  a.give_back({four_gib - page});
  EXPECT_EQ(a.take_at({four_gib}, page).value, four_gib);
}

TEST(IovaAllocator, RefusesWhatCannotBe) {
  IovaAllocator a(0x10000, uint64_t{1} << 40);
  EXPECT_EQ(code_of([&] { a.take(0); }), Errc::usage);
  EXPECT_EQ(code_of([&] { a.take(UINT64_MAX); }), Errc::usage);
  EXPECT_EQ(code_of([&] { a.take(uint64_t{1} << 41); }), Errc::no_memory);
  EXPECT_EQ(code_of([&] { a.take_at({0x10001}, page); }), Errc::usage);
  EXPECT_EQ(code_of([&] { a.take_at({0x10000}, 0); }), Errc::usage);
  EXPECT_EQ(code_of([&] { a.take_at({UINT64_MAX - page + 1}, 2 * page); }), Errc::usage);
  EXPECT_EQ(code_of([&] { a.take_at({uint64_t{1} << 40}, page); }), Errc::usage)
      << "beyond the device's reach";
  EXPECT_EQ(code_of([&] { a.give_back({0x10000}); }), Errc::usage);
  EXPECT_EQ(a.count(), 0u);
}

// Against a plain model: nothing overlaps, first fit finds room whenever there is any.
TEST(IovaAllocator, KeepsItsPromisesOverRandomUse) {
  constexpr uint64_t low = 0x10000, pages = 256;
  for (uint64_t gap : {uint64_t{0}, page}) {
    std::mt19937_64 rng(17 + gap);
    IovaAllocator a(low, low + pages * page, gap);
    std::map<uint64_t, uint64_t> model;  // page number -> pages
    auto free_run = [&](uint64_t at, uint64_t n, uint64_t around) {
      if (at + n > pages) return false;
      for (auto [first, length] : model)
        if (first < at + n + around && at < first + length + around) return false;
      return true;
    };
    for (int step = 0; step < 20000; ++step) {
      uint64_t n = 1 + rng() % 12;
      if (rng() % 2 == 0 && !model.empty()) {
        auto victim = std::next(model.begin(), static_cast<ptrdiff_t>(rng() % model.size()));
        a.give_back({low + victim->first * page});
        model.erase(victim);
      } else if (rng() % 3 == 0) {
        uint64_t at = rng() % pages;
        bool room = free_run(at, n, 0);
        try {
          a.take_at({low + at * page}, n * page);
          ASSERT_TRUE(room) << "overlap at step " << step;
          model[at] = n;
        } catch (const Error& e) {
          ASSERT_FALSE(room) << e.what();
        }
      } else {
        uint64_t want = pages;
        for (uint64_t at = 0; at < pages && want == pages; ++at)
          if (free_run(at, n, gap / page)) want = at;
        try {
          uint64_t got = (a.take(n * page - rng() % page).value - low) / page;
          ASSERT_EQ(got, want) << "not the first that fits, step " << step;
          model[got] = n;
        } catch (const Error& e) {
          ASSERT_EQ(e.code(), Errc::no_memory);
          ASSERT_EQ(want, pages) << "there was room, step " << step;
        }
      }
      ASSERT_EQ(a.count(), model.size());
    }
  }
}

TEST(DmaPool, GivesPartsOfOneFileThatNeverOverlapAndAreEmpty) {
  tpu::DmaPool pool;
  std::mt19937_64 rng(23);
  std::vector<tpu::DmaPool::Part> held;
  for (int step = 0; step < 600; ++step) {
    if (rng() % 2 == 0 && !held.empty()) {
      size_t i = rng() % held.size();
      pool.give_back(held[i]);
      held.erase(held.begin() + static_cast<ptrdiff_t>(i));
      continue;
    }
    auto part = pool.take(1 + rng() % 40000, {});
    ASSERT_EQ(part.offset % page, 0u);
    for (const auto& other : held)
      ASSERT_TRUE(part.offset >= other.offset + other.size || other.offset >= part.offset + part.size);
    Mapping map(pool.fd(), part.offset, Bytes{part.size}, true, "part");
    for (size_t i = 0; i < map.size(); i += 512)
      ASSERT_EQ(map.data()[i], std::byte{0}) << "an earlier owner's bytes";
    std::fill(map.bytes().begin(), map.bytes().end(), std::byte{0x77});
    held.push_back(part);
  }
  uint64_t sum = 0;
  for (const auto& part : held) sum += part.size;
  EXPECT_EQ(pool.in_use(), sum);
}

TEST(DmaPool, StaysInTheDevicesReachAndOutOfTheInterruptWindow) {
  tpu::DmaPool pool;
  pool.limit(32);
  auto most = pool.take(uint64_t{0xfee0'0000} - 0x1000'0000 - page, {});
  EXPECT_LE(most.iova.value + most.size, 0xfee0'0000u);
  EXPECT_GE(pool.take(page, {}).iova.value, 0xfef0'0000u);
  EXPECT_EQ(code_of([&] { pool.take(page, Iova{0xfee0'0000}); }), Errc::busy);
  EXPECT_EQ(code_of([&] { pool.take(page, Iova{four_gib}); }), Errc::usage);
}

}  // namespace
}  // namespace kz
