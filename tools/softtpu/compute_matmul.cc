// SPDX-License-Identifier: GPL-2.0-or-later
#include <cblas.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/compute.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
// OpenBLAS hands work to its own threads with atomics that the thread sanitizer cannot see into: it must not
// judge what that library copies and clears. Called by the sanitizer's runtime when the program starts.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "race:libopenblas\n"; }
#endif

namespace kz::softtpu {
namespace {

// Largest product that is done in one call: between calls a cancelled command stops.
constexpr uint64_t call_limit = uint64_t{1} << 32;
// Terms whose sum is exact in f32: 1024 x 128 x 128 = 2^24.
constexpr uint64_t exact_terms = 1024;

bool cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

void sgemm(uint64_t m, uint64_t n, uint64_t k, const float* a, uint64_t lda, const float* b, uint64_t ldb,
           float beta, float* c, uint64_t ldc) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), 1.0f, a, static_cast<blasint>(lda), b, static_cast<blasint>(ldb), beta,
              c, static_cast<blasint>(ldc));
}

// BLAS sums from +0, and +0 + -0 is +0.
void outer(const Shape& s, const float* a, const float* b, float* c) {
  for (uint64_t i = 0; i < s.m; ++i) {
    float x = a[i * s.lda];
    float* row = c + i * s.ldc;
    if (s.accumulate)
      for (uint64_t j = 0; j < s.n; ++j) row[j] += x * b[j];
    else
      for (uint64_t j = 0; j < s.n; ++j) row[j] = x * b[j];
  }
}

void add_wrapping(int32_t* c, const float* part, uint64_t n, bool keep) {
  if (keep)
    for (uint64_t j = 0; j < n; ++j)
      c[j] = static_cast<int32_t>(static_cast<uint32_t>(c[j]) +
                                  static_cast<uint32_t>(static_cast<int32_t>(part[j])));
  else
    for (uint64_t j = 0; j < n; ++j) c[j] = static_cast<int32_t>(part[j]);
}

}  // namespace

uint64_t dtype_bytes(uint8_t dtype) { return dtype == KZ_DT_S8 ? 1 : dtype == KZ_DT_F32 ? 4 : 2; }

uint32_t numeric_contract(uint8_t dtype) {
  if (dtype == KZ_DT_S8) return KZ_NUM_WRAP | KZ_NUM_DETERMINISTIC;
  if (dtype > KZ_DT_F32) return 0;
  return KZ_NUM_RNE | KZ_NUM_DENORM_IN | KZ_NUM_DENORM_OUT | KZ_NUM_NAN | KZ_NUM_INF | KZ_NUM_SIGNED_ZERO |
         KZ_NUM_DETERMINISTIC | KZ_NUM_ACC_F32;
}

bool product_f32(const Shape& s, const float* a, const float* b, float* c, const std::atomic<bool>* cancel) {
  if (s.k == 1) {
    outer(s, a, b, c);
    return true;
  }
  uint64_t rows = std::clamp<uint64_t>(call_limit / (s.n * s.k), 1, s.m);
  for (uint64_t i = 0; i < s.m; i += rows) {
    if (cancelled(cancel)) return false;
    sgemm(std::min(rows, s.m - i), s.n, s.k, a + i * s.lda, s.lda, b, s.ldb, s.accumulate ? 1.0f : 0.0f,
          c + i * s.ldc, s.ldc);
  }
  return true;
}

bool product_s8(const Shape& s, const float* a, const float* b, int32_t* c, bool saturate,
                const std::atomic<bool>* cancel) {
  uint64_t rows = std::clamp<uint64_t>(call_limit / (s.n * std::min(s.k, exact_terms)), 1, s.m);
  auto part = std::make_unique_for_overwrite<float[]>(rows * s.n);
  std::vector<int64_t> sum(saturate ? s.n : 0);
  for (uint64_t i = 0; i < s.m; i += rows) {
    uint64_t r = std::min(rows, s.m - i);
    std::vector<int64_t> wide(saturate ? r * s.n : 0);
    for (uint64_t k = 0; k < s.k; k += exact_terms) {
      if (cancelled(cancel)) return false;
      sgemm(r, s.n, std::min(exact_terms, s.k - k), a + i * s.lda + k, s.lda, b + k * s.ldb, s.ldb, 0.0f,
            part.get(), s.n);
      for (uint64_t j = 0; j < wide.size(); ++j) wide[j] += static_cast<int64_t>(part[j]);
      for (uint64_t x = 0; x < r && !saturate; ++x)
        add_wrapping(c + (i + x) * s.ldc, part.get() + x * s.n, s.n, k != 0 || s.accumulate);
    }
    for (uint64_t j = 0; j < wide.size(); ++j) {
      int32_t& out = c[(i + j / s.n) * s.ldc + j % s.n];
      int64_t total = wide[j] + (s.accumulate ? out : 0);
      out = static_cast<int32_t>(std::clamp<int64_t>(total, INT32_MIN, INT32_MAX));
    }
  }
  return true;
}

namespace {

bool same_bits(float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); }

// Operands that are small integers, so that every order of summation gives the same bits.
bool check_integers(uint64_t m, uint64_t n, uint64_t k) {
  std::vector<float> a(m * k), b(k * n), c(m * n, std::numeric_limits<float>::quiet_NaN());
  for (uint64_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 7 % 31) - 15);
  for (uint64_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 11 % 29) - 14);
  product_f32({m, n, k, k, n, n, false}, a.data(), b.data(), c.data(), nullptr);
  for (uint64_t i = 0; i < m; ++i)
    for (uint64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (uint64_t x = 0; x < k; ++x) sum += a[i * k + x] * b[x * n + j];
      if (sum != c[i * n + j]) return false;
    }
  return true;
}

// A special value in one operand must reach its row (or column) and nothing else.
bool check_special(uint64_t m, uint64_t n, uint64_t k) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (float special : {nan, inf}) {
    std::vector<float> a(m * k, 1), b(k * n, 0), c(m * n, nan);
    uint64_t row = m / 2, at = k - 1;
    a[row * k + at] = special;  // meets only zeroes: NaN x 0 and inf x 0 are NaN
    product_f32({m, n, k, k, n, n, false}, a.data(), b.data(), c.data(), nullptr);
    for (uint64_t i = 0; i < m; ++i)
      for (uint64_t j = 0; j < n; ++j)
        if (std::isnan(c[i * n + j]) != (i == row)) return false;
    std::fill(a.begin(), a.end(), 0.0f);
    b[(k / 2) * n + n - 1] = special;
    product_f32({m, n, k, k, n, n, false}, a.data(), b.data(), c.data(), nullptr);
    for (uint64_t i = 0; i < m; ++i)
      for (uint64_t j = 0; j < n; ++j)
        if (std::isnan(c[i * n + j]) != (j == n - 1)) return false;
  }
  return true;
}

bool check_edges() {
  const float tiny = std::numeric_limits<float>::denorm_min(), big = std::numeric_limits<float>::max();
  float c[4];
  const float denormal[] = {tiny, 0, 0, tiny}, two[] = {2, 0, 0, 3};
  product_f32({2, 2, 2, 2, 2, 2, false}, denormal, two, c, nullptr);
  if (!same_bits(c[0], 2 * tiny) || !same_bits(c[3], 3 * tiny) || c[1] != 0) return false;
  const float large[] = {big, big, -big, -big}, ones[] = {1, 1, 1, 1};
  product_f32({2, 2, 2, 2, 2, 2, false}, large, ones, c, nullptr);
  if (!std::isinf(c[0]) || c[0] < 0 || !std::isinf(c[2]) || c[2] > 0) return false;
  const float zero[] = {-0.0f, 0.0f}, one[] = {1, -1};
  product_f32({2, 2, 1, 1, 2, 2, false}, zero, one, c, nullptr);
  return same_bits(c[0], -0.0f) && same_bits(c[1], 0.0f) && same_bits(c[2], 0.0f) && same_bits(c[3], -0.0f);
}

}  // namespace

bool compute_self_check() {
  for (auto [m, n, k] : {std::array<uint64_t, 3>{1, 1, 2},
                         {3, 5, 7},
                         {1, 64, 64},
                         {64, 1, 64},
                         {17, 33, 65},
                         {64, 64, 64},
                         {129, 127, 128},
                         {200, 300, 100}})
    if (!check_integers(m, n, k) || !check_special(m, n, k)) return false;
  return check_edges();
}

}  // namespace kz::softtpu
