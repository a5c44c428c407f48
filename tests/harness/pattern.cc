// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/pattern.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kz::test {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    table[i] = c;
  }
  return table;
}
constexpr auto kTable = make_table();

PageTag make_tag(const Payload& payload, uint64_t page) {
  PageTag tag{kTagMagic, payload.seed, page, payload.sequence, 0};
  tag.crc32c = crc32c(std::as_bytes(std::span(&tag, 1)).first(28));
  return tag;
}

// The whole page that starts at `page`, a multiple of kTagPage.
void make_page(std::byte* out, const Payload& payload, uint64_t page) {
  const PageTag tag = make_tag(payload, page);
  std::memcpy(out, &tag, sizeof tag);
  const uint64_t stream = payload.seed * 0x9e3779b97f4a7c15ull ^ (uint64_t{payload.sequence} << 32);
  for (uint64_t at = sizeof tag; at < kTagPage; at += 8) {
    const uint64_t word = mix(stream, (page + at) / 8);
    std::memcpy(out + at, &word, 8);
  }
}

// Calls with every piece of [offset, offset + length) that lies within one page.
template <class Visit>
void for_pages(uint64_t offset, uint64_t length, Visit visit) {
  for (uint64_t done = 0; done < length;) {
    const uint64_t in_page = (offset + done) % kTagPage;
    const uint64_t n = std::min(length - done, kTagPage - in_page);
    if (!visit(offset + done - in_page, in_page, done, n)) return;
    done += n;
  }
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  for (std::byte b : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(b)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint64_t mix(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void fill_payload(std::span<std::byte> out, const Payload& payload, uint64_t offset) {
  alignas(64) std::array<std::byte, kTagPage> page;
  for_pages(offset, out.size(), [&](uint64_t base, uint64_t in_page, uint64_t at, uint64_t n) {
    if (n == kTagPage) {
      make_page(&out[at], payload, base);
    } else {
      make_page(page.data(), payload, base);
      std::memcpy(&out[at], &page[in_page], n);
    }
    return true;
  });
}

std::optional<uint64_t> first_mismatch(std::span<const std::byte> got, const Payload& payload,
                                       uint64_t offset) {
  alignas(64) std::array<std::byte, kTagPage> page;
  std::optional<uint64_t> found;
  for_pages(offset, got.size(), [&](uint64_t base, uint64_t in_page, uint64_t at, uint64_t n) {
    make_page(page.data(), payload, base);
    if (std::memcmp(&got[at], &page[in_page], n) == 0) return true;
    const auto* bad = std::mismatch(&got[at], &got[at] + n, &page[in_page]).first;
    found = static_cast<uint64_t>(bad - got.data());
    return false;
  });
  return found;
}

std::optional<PageTag> read_tag(std::span<const std::byte> page) {
  PageTag tag;
  if (page.size() < sizeof tag) return std::nullopt;
  std::memcpy(&tag, page.data(), sizeof tag);
  if (tag.magic != kTagMagic || tag.crc32c != crc32c(page.first(28))) return std::nullopt;
  return tag;
}

}  // namespace kz::test
