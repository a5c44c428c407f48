// SPDX-License-Identifier: GPL-2.0-or-later
// The matrix and vector units: arithmetic on plain arrays, no HBM and no commands.
//
// Matrices are row-major; ld* is in elements. s8 products are exact modulo 2^32: partial sums of 1024 terms
// are integers of at most 2^24 and so exact in f32, and they are added up as integers. bf16 and f16 are
// widened exactly to f32 and go through the f32 unit, which is OpenBLAS; a product of one term (k = 1) is
// computed directly, so that it keeps the sign of zero.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shim/uapi/kz_cmd.h"

namespace kz::softtpu {

class FaultBoard;

// Exact conversions, IEEE 754-2019 binary16 and the upper half of binary32. NaNs keep sign and payload.
float f16_to_f32(uint16_t half);
float bf16_to_f32(uint16_t b);

uint64_t dtype_bytes(uint8_t dtype);       // of an operand element
uint32_t numeric_contract(uint8_t dtype);  // KZ_NUM_*
// n operand elements of the type to f32.
void widen(uint8_t dtype, const std::byte* in, float* out, uint64_t n);

struct Shape {
  uint64_t m, n, k;
  uint64_t lda, ldb, ldc;
  bool accumulate;
};

// C = A B [+ C]. False: `cancel` was set and C is unfinished.
bool product_f32(const Shape& s, const float* a, const float* b, float* c, const std::atomic<bool>* cancel);
// The operands are s8 values as f32. `saturate`: clamps the true sum instead of wrapping (fault C08).
bool product_s8(const Shape& s, const float* a, const float* b, int32_t* c, bool saturate,
                const std::atomic<bool>* cancel);

// Multiplies a few products with OpenBLAS and in plain loops and says whether they agree, in special values
// too. A build or a processor for which it is false must not be trusted.
bool compute_self_check();

// ---- faults C01..C15 ----

// The faults that strike one matmul. Drawn once a command.
class ComputeFaults {
 public:
  // `celsius`: of the core. `draw` gives random numbers.
  ComputeFaults(FaultBoard& board, const kz_matmul& m, double celsius, uint64_t draw);
  bool any() const { return any_; }
  // Works on dense copies (lda = k, ldb = n, ldc = n), which it may change. `raw_a` and `raw_b` are the
  // operands as bits.
  bool multiply(Shape s, std::vector<float>& a, std::vector<float>& b, std::byte* c,
                std::span<const std::byte> raw_a, std::span<const std::byte> raw_b,
                const std::atomic<bool>* cancel) const;

 private:
  struct Params {
    double a = 0, b = 0, c = 0;
    bool on = false;
  };
  void spoil_operands(const Shape& s, std::vector<float>& a, std::vector<float>& b,
                      std::span<const std::byte> raw_a) const;
  bool product(const Shape& s, const std::vector<float>& a, const std::vector<float>& b, std::byte* c,
               const std::atomic<bool>* cancel) const;
  void pattern_pair(const Shape& s, std::byte* c, std::span<const std::byte> raw_a,
                    std::span<const std::byte> raw_b) const;
  void spoil_result(const Shape& s, std::byte* c) const;
  void flip(const Shape& s, std::byte* c, uint64_t row, uint64_t col, unsigned bit) const;
  void cancelling(const Shape& s, std::byte* c) const;

  uint8_t dtype_;
  uint64_t draw_;
  bool any_ = false;
  Params flip_, dead_pe_, few_bits_, truncate_, nan_, inf_, denormal_, saturate_, pattern_, hot_, tail_,
      unstable_, minus_zero_, constant_, cancelling_;
};

// ---- vector unit ----

// dst of KZ_VEC_* over n elements; `b` is null for operations of one operand. dst may be a or b, but not
// overlap them in part. cols divides n for SOFTMAX, LAYERNORM and SUM. ADD, MUL, SUB as IEEE 754; MAX as its
// `maximum`: NaN wins, +0 > -0. GELU, SOFTMAX, LAYERNORM and SUM are computed in binary64 and rounded once.
bool vector_op(uint8_t op, const float* a, const float* b, float* dst, uint64_t n, uint64_t cols,
               const std::atomic<bool>* cancel);

}  // namespace kz::softtpu
