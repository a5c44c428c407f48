// SPDX-License-Identifier: GPL-2.0-or-later
// CRC32C (Castagnoli), reflected, initial value and final XOR all ones: RFC 3720, section 12.1 and appendix
// B.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kz::softtpu {

// Continues `crc` (0 to start) over the bytes. Uses the processor's instruction where it has one.
uint32_t crc32c(uint32_t crc, std::span<const std::byte> bytes);
// The same without the instruction.
uint32_t crc32c_portable(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace kz::softtpu
