// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/exec_crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kz::softtpu {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) != 0 ? 0x82f63b78u : 0);
    t[i] = c;
  }
  return t;
}
constexpr auto table = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse(uint32_t crc, std::span<const std::byte> bytes) {
  uint64_t c = ~crc;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    c = _mm_crc32_u64(c, word);
  }
  for (; i < bytes.size(); ++i) c = _mm_crc32_u8(static_cast<uint32_t>(c), static_cast<uint8_t>(bytes[i]));
  return ~static_cast<uint32_t>(c);
}
#endif

}  // namespace

uint32_t crc32c_portable(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (std::byte b : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(b)) & 0xff];
  return ~crc;
}

uint32_t crc32c(uint32_t crc, std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse(crc, bytes);
#endif
  return crc32c_portable(crc, bytes);
}

}  // namespace kz::softtpu
