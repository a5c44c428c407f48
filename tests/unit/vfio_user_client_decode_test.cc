// SPDX-License-Identifier: GPL-2.0-or-later
// The client's decoding of a server's messages, without sockets. Right values: QEMU
// docs/interop/vfio-user.rst.
#include <gtest/gtest.h>

#include <random>

#include "shim/vfio_user/decode.h"
#include "tests/unit/code_of.h"
#include "tests/unit/vfio_user_client_peer.h"

namespace kz::vfio_user {
namespace {

using namespace peer;

Incoming incoming(Buffer payload) { return {{}, std::move(payload), {}}; }

Buffer message(uint16_t command, uint32_t flags, const Buffer& payload) {
  return bytes_of(Header{1, command, static_cast<uint32_t>(16 + payload.size()), flags, 0}) + payload;
}

TEST(VfioUserStream, CutsMessagesAtAnyByte) {
  Buffer all = message(cmd_get_info, flag_reply, Buffer(16, std::byte{1})) +
               message(cmd_dma_map, flag_reply, {}) + message(cmd_dma_read, 0, Buffer(300, std::byte{2}));
  for (size_t step : {size_t{1}, size_t{7}, size_t{16}, size_t{1000}}) {
    Stream stream;
    std::vector<Incoming> got;
    for (size_t at = 0; at < all.size();) {
      auto room = stream.room();
      ASSERT_FALSE(room.empty());
      size_t n = std::min({room.size(), step, all.size() - at});
      std::copy_n(all.begin() + static_cast<ptrdiff_t>(at), n, room.begin());
      at += n;
      if (auto m = stream.took(n, {})) got.push_back(std::move(*m));
    }
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(got[0].payload, Buffer(16, std::byte{1}));
    EXPECT_TRUE(got[1].payload.empty());
    EXPECT_FALSE(got[2].is_reply());
    EXPECT_EQ(got[2].payload.size(), 300u);
  }
}

TEST(VfioUserStream, RefusesSizesThatCannotBe) {
  for (uint32_t size : {0u, 15u, max_message + 1, 0xffffffffu}) {
    Stream stream;
    Header h{1, 2, size, 0, 0};
    std::memcpy(stream.room().data(), &h, sizeof h);
    EXPECT_EQ(code_of([&] { stream.took(sizeof h, {}); }), Errc::protocol) << size;
  }
}

TEST(VfioUserRegionInfo, FollowsTheChainAndNothingElse) {
  uint32_t flags = region_mappable | region_has_caps;
  auto info = [&](uint32_t argsz, uint32_t cap, uint64_t size) {
    return bytes_of(RegionInfo{argsz, flags, 4, cap, size, 0});
  };
  auto sparse = [](uint32_t next, uint32_t areas) {
    return bytes_of(SparseMmap{{cap_sparse_mmap, 1, next}, areas, 0});
  };
  auto other = [](uint32_t next) { return bytes_of(CapHeader{cap_msix_mappable, 1, next}); };
  auto decode = [&](Buffer payload) { return decode_region_info(incoming(std::move(payload)), 4, 4096); };
  EXPECT_EQ(
      decode(info(72, 32, 1 << 20) + other(40) + sparse(0, 1) + bytes_of(Area{4096, 8192})).areas.size(), 1u);
  // No list of areas: all of it.
  auto whole = decode(info(40, 32, 1 << 20) + other(0)).areas;
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].size, 1u << 20);
  EXPECT_EQ(decode_region_info(incoming(info(9000, 32, 4096)), 4, 4096).needs, 9000u);
  const Buffer bad[] = {
      Buffer(31),
      info(40, 32, 1 << 20) + other(32),         // points at itself
      info(40, 64, 1 << 20) + other(0),          // outside
      info(40, 0xfffffff0, 1 << 20) + other(0),  // far outside
      info(48, 32, 1 << 20) + sparse(0, 3),      // fewer areas than said
      info(48, 32, 1 << 20) + sparse(0, 0xffffffff),
      info(64, 32, 1 << 20) + sparse(0, 1) + bytes_of(Area{1, 4096}),                   // not of whole pages
      info(64, 32, 1 << 20) + sparse(0, 1) + bytes_of(Area{1 << 20, 4096}),             // behind the end
      info(64, 32, 1 << 20) + sparse(0, 1) + bytes_of(Area{4096, uint64_t(0) - 4096}),  // wraps
      info(0x7fffffff, 32, 1 << 20),
      bytes_of(RegionInfo{32, 0, 5, 0, 4096, 0}),  // another region
      bytes_of(RegionInfo{32, 0, 4, 0, UINT64_MAX, 0}),
  };
  for (size_t i = 0; i < std::size(bad); ++i)
    EXPECT_EQ(code_of([&] { decode(bad[i]); }), Errc::protocol) << "row " << i;
}

TEST(VfioUserRegionRead, MustAnswerWhatWasAsked) {
  RegionAccess asked{0x100, 4, 4};
  std::array<std::byte, 4> out{};
  decode_region_read(incoming(bytes_of(asked) + bytes_of(uint32_t{0x12345678})), asked, out);
  EXPECT_EQ(out[0], std::byte{0x78});
  for (Buffer bad :
       {bytes_of(asked), bytes_of(asked) + Buffer(3), bytes_of(asked) + Buffer(5),
        bytes_of(RegionAccess{0x104, 4, 4}) + Buffer(4), bytes_of(RegionAccess{0x100, 5, 4}) + Buffer(4),
        bytes_of(RegionAccess{0x100, 4, 3}) + Buffer(4)})
    EXPECT_EQ(code_of([&] { decode_region_read(incoming(bad), asked, out); }), Errc::protocol);
}

TEST(VfioUserDecode, TakesAnyBytes) {
  std::mt19937 rng(5);
  size_t whole = 0;
  for (int round = 0; round < 20000; ++round) {
    Buffer all;
    for (int m = 0; m < 3; ++m) {
      Buffer payload(rng() % 120);
      for (auto& b : payload) b = static_cast<std::byte>(rng() % 4 != 0 ? rng() % 8 : rng());
      all = all + message(static_cast<uint16_t>(rng() % 17), rng() % 2, payload);
    }
    if (rng() % 4 == 0 && !all.empty()) all[rng() % all.size()] = static_cast<std::byte>(rng());
    whole += decode_everything(all);
  }
  EXPECT_GT(whole, 20000u);
}

}  // namespace
}  // namespace kz::vfio_user
