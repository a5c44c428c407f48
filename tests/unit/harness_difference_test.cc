// SPDX-License-Identifier: GPL-2.0-or-later
// Every shape of difference is made on purpose and must be told from the others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/harness/difference.h"
#include "tests/harness/pattern.h"

namespace kz::test {
namespace {

using Data = std::vector<std::byte>;

Data payload(size_t n, uint32_t sequence = 0) {
  Data d(n);
  fill_payload(d, {42, sequence});
  return d;
}

const Data kOld(3 << 20, std::byte{0xc3});

Difference diff(const Data& want, const Data& got) {
  return compare_bytes(want, got, std::span(kOld).first(want.size()));
}

TEST(HarnessDifference, EqualIsNone) {
  const Data a = payload(10000);
  EXPECT_FALSE(diff(a, a));
  EXPECT_FALSE(compare_bytes({}, {}));
}

TEST(HarnessDifference, SingleBitsAreBits) {
  const Data want = payload(8192);
  Data got = want;
  got[5000] ^= std::byte{0x04};
  auto d = diff(want, got);
  EXPECT_EQ(d.shape, "bit");
  EXPECT_EQ(d.first, 5000u);
  EXPECT_EQ(d.bytes, 1u);
  EXPECT_EQ(d.bits, 1u);
  // A stuck data lane: the same bit of every eighth byte.
  for (size_t i = 3; i < got.size(); i += 64) got[i] |= std::byte{0x20};
  EXPECT_EQ(diff(want, got).shape, "bit");
}

TEST(HarnessDifference, MissingTailAndHead) {
  const Data want = payload(65536);
  for (size_t missing : {4, 32, 64, 500}) {
    Data got = want;
    std::fill(got.end() - static_cast<ptrdiff_t>(missing), got.end(), kOld[0]);
    EXPECT_EQ(diff(want, got).shape, "tail") << missing;
    got = want;
    std::fill(got.begin(), got.begin() + static_cast<ptrdiff_t>(missing), kOld[0]);
    EXPECT_EQ(diff(want, got).shape, "head") << missing;
  }
}

TEST(HarnessDifference, NothingArrived) {
  const Data want = payload(4096);
  EXPECT_EQ(diff(want, Data(kOld.begin(), kOld.begin() + 4096)).shape, "stale");
  EXPECT_EQ(diff(want, Data(4096)).shape, "zeroes");
}

TEST(HarnessDifference, StaleLinesOfAnEarlierPayload) {
  const Data before = payload(65536, 1), want = payload(65536, 2);
  Data got = want;
  std::copy(before.begin() + 4160, before.begin() + 4160 + 128, got.begin() + 4160);
  EXPECT_EQ(compare_bytes(want, got, before).shape, "stale");
}

TEST(HarnessDifference, ShiftedByAPageOrALine) {
  const Data want = payload(65536);
  for (int64_t by : {4096, 8192, 64, 8, 1}) {
    Data got(want.size(), kOld[0]);
    std::copy(want.begin(), want.end() - by, got.begin() + by);
    const auto d = diff(want, got);
    EXPECT_EQ(d.shape, "shifted") << by;
    EXPECT_EQ(d.shift, by);
  }
}

TEST(HarnessDifference, BytesSwappedInWords) {
  const Data want = payload(4096);
  for (size_t word : {2, 4, 8}) {
    Data got = want;
    for (size_t i = 0; i < got.size(); i += word) std::reverse(&got[i], &got[i] + word);
    EXPECT_EQ(diff(want, got).shape, "swapped_bytes") << word;
  }
}

TEST(HarnessDifference, OffByOneAtAChunk) {
  const Data want = payload((2 << 20) + 4097);
  for (size_t at : {(1 << 20) - 1, 1 << 20, (2 << 20) - 1, 2 << 20}) {
    Data got = want;
    got[at] = ~got[at];
    EXPECT_EQ(diff(want, got).shape, "chunk_edge") << at;
  }
}

TEST(HarnessDifference, PiecesAtEachOthersPlace) {
  const Data want = payload(65536);
  Data got = want;
  std::swap_ranges(got.begin() + 1000, got.begin() + 3000, got.begin() + 20000);
  EXPECT_EQ(diff(want, got).shape, "swapped_pieces");
}

TEST(HarnessDifference, NoiseIsMixed) {
  const Data want = payload(65536);
  Data got = want;
  for (size_t i = 100; i < 30000; ++i) got[i] = static_cast<std::byte>(mix(7, i));
  EXPECT_EQ(diff(want, got).shape, "mixed");
}

}  // namespace
}  // namespace kz::test
