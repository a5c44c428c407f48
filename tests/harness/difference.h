// SPDX-License-Identifier: GPL-2.0-or-later
// How received bytes differ from the expected ones: the shape that tells a bad cell from a bad transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kz::test {

struct Difference {
  uint64_t first = 0;  // offset of the first wrong byte
  uint64_t last = 0;   // offset of the last wrong byte
  uint64_t bytes = 0;  // wrong bytes; 0: equal
  uint64_t bits = 0;   // wrong bits
  // "bit": few single bits; "swapped_bytes": the right bytes of each word in another order; "chunk_edge": one
  // short run that touches a multiple of 1 MiB; "head", "tail": one run at the start or end; "shifted": the
  // expected bytes from a little before or after; "swapped_pieces": whole pieces at another piece's place;
  // "stale": what was there before; "zeroes"; "mixed": none of these.
  std::string shape;
  int64_t shift = 0;  // "shifted": bytes by which the data moved
  explicit operator bool() const { return bytes != 0; }
};

// `before`: what the destination held before the transfer, same length, or empty where unknown. `chunk`: unit
// at whose multiples (relative to want[0]) an engine may split.
Difference compare_bytes(std::span<const std::byte> want, std::span<const std::byte> got,
                         std::span<const std::byte> before = {}, uint64_t chunk = uint64_t{1} << 20);

}  // namespace kz::test
