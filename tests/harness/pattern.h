// SPDX-License-Identifier: GPL-2.0-or-later
// Payloads that know where they belong: every 4 KiB page starts with a tag, the rest is a seeded stream that
// depends on the page and the position. Shifted, stale, swapped and duplicated data can be told apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kz::test {

inline constexpr uint64_t kTagPage = 4096;

// At the start of every page of a payload; little-endian as the host is.
struct PageTag {
  uint64_t magic;     // kTagMagic
  uint64_t seed;      // of the payload
  uint64_t offset;    // of the page in the payload
  uint32_t sequence;  // which writing of the same place
  uint32_t crc32c;    // of the 28 bytes before
};
inline constexpr uint64_t kTagMagic = 0x4741545047415a4bull;  // "KZAGPTAG"
static_assert(sizeof(PageTag) == 32);

struct Payload {
  uint64_t seed = 1;
  uint32_t sequence = 0;
};

// Writes bytes [offset, offset + out.size()) of the payload. Any slice of a payload is the same whoever
// writes it.
void fill_payload(std::span<std::byte> out, const Payload& payload, uint64_t offset = 0);
// Offset of the first byte that is not the payload's, or nothing.
std::optional<uint64_t> first_mismatch(std::span<const std::byte> got, const Payload& payload,
                                       uint64_t offset = 0);
// The tag at the start of `page`, if one with a good CRC is there.
std::optional<PageTag> read_tag(std::span<const std::byte> page);

// CRC32C (Castagnoli, RFC 3720 B.4), bit-reflected, initial and final inversion; table-driven.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);
// splitmix64: one 64-bit number of the stream `seed` at position `i`.
uint64_t mix(uint64_t seed, uint64_t i);

}  // namespace kz::test
