// SPDX-License-Identifier: GPL-2.0-or-later
// Bytes that say what they are: a header with sequence, address, seed and CRC32C, and pseudo-random bytes
// behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kz::load {

struct PayloadHeader {
  uint64_t sequence;  // of the copy that brought it
  uint64_t address;   // in HBM, where it was first written
  uint64_t seed;
  uint32_t length;  // header included
  uint32_t crc;     // CRC32C of all bytes, with this field 0
};
static_assert(sizeof(PayloadHeader) == 32);

// What a place should hold.
struct PayloadTag {
  uint64_t sequence = 0, address = 0, seed = 0;
  uint32_t length = 0;
};

// What is wrong with bytes that came back.
enum class PayloadFault : uint8_t {
  none,
  not_written,  // still what the host put there before
  stale,        // whole and sound, but an earlier one of this place
  elsewhere,    // whole and sound, but of another place or another run
  damaged,      // the CRC does not fit
};
std::string_view to_string(PayloadFault fault);

// `out` has room for the tag's length, at least sizeof(PayloadHeader).
void write_payload(std::span<std::byte> out, const PayloadTag& tag);
// Makes bytes that a copy must replace recognisable.
void mark_unwritten(std::span<std::byte> bytes);
PayloadFault check_payload(std::span<const std::byte> bytes, const PayloadTag& want);

// CRC32C (RFC 3720), by the processor's instruction where it has one.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace kz::load
