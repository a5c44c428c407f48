// SPDX-License-Identifier: GPL-2.0-or-later
#include <algorithm>
#include <cmath>

#include "tools/softtpu/compute.h"

namespace kz::softtpu {
namespace {

constexpr uint64_t block = 1 << 16;  // elements between two looks at `cancel`

// IEEE 754-2019, 9.6: maximum.
float maximum(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return x + y;
  if (x == y) return std::signbit(x) ? y : x;
  return x > y ? x : y;
}

float gelu(float x) {
  double d = x;
  if (std::isinf(x)) return x > 0 ? x : -0.0f;  // the limit; the formula says -inf x 0
  return static_cast<float>(0.5 * d * (1 + std::erf(d / std::sqrt(2.0))));
}

float element(uint8_t op, float x, float y) {
  switch (op) {
    case KZ_VEC_ADD:
      return x + y;
    case KZ_VEC_MUL:
      return x * y;
    case KZ_VEC_SUB:
      return x - y;
    case KZ_VEC_MAX:
      return maximum(x, y);
    case KZ_VEC_RELU:
      return std::isnan(x) ? x : x > 0 ? x : 0.0f;
    default:
      return gelu(x);
  }
}

void softmax(const float* a, float* dst, uint64_t cols) {
  double top = -INFINITY, sum = 0;
  bool nan = false;
  for (uint64_t j = 0; j < cols; ++j) {
    nan |= std::isnan(a[j]);
    top = std::max<double>(top, a[j]);
  }
  if (nan || std::isinf(top)) {  // inf - inf, or nothing above -inf
    std::fill_n(dst, cols, std::nanf(""));
    return;
  }
  for (uint64_t j = 0; j < cols; ++j) sum += std::exp(a[j] - top);
  for (uint64_t j = 0; j < cols; ++j) dst[j] = static_cast<float>(std::exp(a[j] - top) / sum);
}

void layernorm(const float* a, float* dst, uint64_t cols) {
  double mean = 0, variance = 0;
  for (uint64_t j = 0; j < cols; ++j) mean += a[j];
  mean /= static_cast<double>(cols);
  for (uint64_t j = 0; j < cols; ++j) variance += (a[j] - mean) * (a[j] - mean);
  double scale = 1 / std::sqrt(variance / static_cast<double>(cols) + 1e-5);
  for (uint64_t j = 0; j < cols; ++j) dst[j] = static_cast<float>((a[j] - mean) * scale);
}

float sum(const float* a, uint64_t cols) {
  double s = 0;
  for (uint64_t j = 0; j < cols; ++j) s += a[j];
  return static_cast<float>(s);
}

}  // namespace

bool vector_op(uint8_t op, const float* a, const float* b, float* dst, uint64_t n, uint64_t cols,
               const std::atomic<bool>* cancel) {
  auto stopped = [cancel] { return cancel != nullptr && cancel->load(std::memory_order_relaxed); };
  if (op < KZ_VEC_SOFTMAX) {
    for (uint64_t i = 0; i < n; i += block) {
      if (stopped()) return false;
      for (uint64_t j = i; j < std::min(n, i + block); ++j)
        dst[j] = element(op, a[j], b != nullptr ? b[j] : 0);
    }
    return true;
  }
  for (uint64_t i = 0, row = 0; i < n; i += cols, ++row) {
    if (row % 256 == 0 && stopped()) return false;
    if (op == KZ_VEC_SOFTMAX) softmax(a + i, dst + i, cols);
    if (op == KZ_VEC_LAYERNORM) layernorm(a + i, dst + i, cols);
    if (op == KZ_VEC_SUM) dst[row] = sum(a + i, cols);
  }
  return true;
}

}  // namespace kz::softtpu
