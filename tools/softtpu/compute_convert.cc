// SPDX-License-Identifier: GPL-2.0-or-later
#include <bit>
#include <cstring>

#include "tools/softtpu/compute.h"

namespace kz::softtpu {

// The exponent is rebiased by an exact multiplication, which also normalises denormals (IEEE 754-2019, 3.4).
float f16_to_f32(uint16_t half) {
  uint32_t magnitude = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
  float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  uint32_t bits = (half & 0x7c00) == 0x7c00 ? magnitude | 0x7f800000u : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(bits | sign);
}

float bf16_to_f32(uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); }

void widen(uint8_t dtype, const std::byte* in, float* out, uint64_t n) {
  auto half = reinterpret_cast<const uint16_t*>(in);
  switch (dtype) {
    case KZ_DT_S8:
      for (uint64_t i = 0; i < n; ++i) out[i] = reinterpret_cast<const int8_t*>(in)[i];
      return;
    case KZ_DT_BF16:
      for (uint64_t i = 0; i < n; ++i) out[i] = bf16_to_f32(half[i]);
      return;
    case KZ_DT_F16:
      for (uint64_t i = 0; i < n; ++i) out[i] = f16_to_f32(half[i]);
      return;
    default:
      std::memcpy(out, in, n * sizeof(float));
  }
}

}  // namespace kz::softtpu
