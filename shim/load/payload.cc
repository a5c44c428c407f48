// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/payload.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kz::load {
namespace {

// In no payload but by chance, and in no result: repeated, it is no whole number as a float, and far beyond
// any product as an integer.
constexpr uint8_t unwritten_byte = 0xa7;

constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}();

uint32_t crc_by_table(const std::byte* p, size_t n, uint32_t crc) {
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<uint8_t>(*p)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc_by_instruction(const std::byte* p, size_t n, uint32_t crc) {
  uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; --n, ++p) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*p));
  return crc;
}
const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#endif

uint32_t crc_with_field_zero(std::span<const std::byte> bytes) {
  PayloadHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  header.crc = 0;
  uint32_t crc = crc32c(std::as_bytes(std::span(&header, 1)));
  return crc32c(bytes.subspan(sizeof header), crc);
}

}  // namespace

std::string_view to_string(PayloadFault fault) {
  constexpr std::string_view names[] = {"none", "not written", "stale", "from elsewhere", "damaged"};
  return names[static_cast<size_t>(fault)];
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (has_instruction) return ~crc_by_instruction(bytes.data(), bytes.size(), ~crc);
#endif
  return ~crc_by_table(bytes.data(), bytes.size(), ~crc);
}

void write_payload(std::span<std::byte> out, const PayloadTag& tag) {
  auto bytes = out.first(tag.length);
  PayloadHeader header{tag.sequence, tag.address, tag.seed, tag.length, 0};
  std::memcpy(bytes.data(), &header, sizeof header);
  uint64_t x = tag.seed ^ (tag.sequence * 0x9e3779b97f4a7c15u) ^ (tag.address << 17) ^ 0x2545f4914f6cdd1du;
  for (size_t i = sizeof header; i < bytes.size(); i += 8) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    std::memcpy(bytes.data() + i, &x, std::min<size_t>(8, bytes.size() - i));
  }
  header.crc = crc_with_field_zero(bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
}

// All of it: what stood there may be the very bytes that should come, and any piece of a copy may be lost.
// It costs the least of the three passes over a payload, after making it and its CRC.
void mark_unwritten(std::span<std::byte> bytes) { std::memset(bytes.data(), unwritten_byte, bytes.size()); }

PayloadFault check_payload(std::span<const std::byte> all, const PayloadTag& want) {
  auto bytes = all.first(want.length);
  PayloadHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.length != want.length || crc_with_field_zero(bytes) != header.crc) {
    bool untouched = std::all_of(bytes.begin(), bytes.begin() + sizeof header,
                                 [](std::byte b) { return b == std::byte{unwritten_byte}; });
    // A sound payload of another length is an earlier one of this place, or of another.
    bool sound = header.length >= sizeof header && header.length <= all.size() &&
                 crc_with_field_zero(all.first(header.length)) == header.crc;
    if (!sound) return untouched ? PayloadFault::not_written : PayloadFault::damaged;
  }
  if (header.seed != want.seed || header.address != want.address) return PayloadFault::elsewhere;
  if (header.sequence != want.sequence || header.length != want.length) return PayloadFault::stale;
  return PayloadFault::none;
}

}  // namespace kz::load
