// SPDX-License-Identifier: GPL-2.0-or-later
// Vector operations in f64, and how far an f32 device may be away. u = 2^-24.
//
//   add sub mul    one rounding: u |y|, and half the smallest denormal
//   max relu       exact
//   gelu           4 u |x|: erf near -1 cancels
//   softmax        (cols + 16 + 2 |x - max|) u |y|: rounding of the argument, the exponential, the sum, the
//   quotient layernorm      (cols + 32) u (|y| + max|x| / sigma) sum            cols u sum|x|
#pragma once

#include <span>
#include <vector>

#include "shim/command.h"

namespace kz::compute {

struct Expected {
  double value = 0;
  double bound = 0;
};

// One per result element. `cols` as in the command; `b` empty for operations with one operand.
std::vector<Expected> vector_golden(VectorOp op, std::span<const float> a, std::span<const float> b,
                                    uint32_t cols);
// NaN equals NaN, infinities must agree, finite values lie within the bound.
bool agrees(float got, const Expected& want);

}  // namespace kz::compute
