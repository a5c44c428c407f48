// SPDX-License-Identifier: GPL-2.0-or-later
// Operands with which different faults show: what a type holds exactly, and what it makes of awkward values.
#pragma once

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/compute/golden.h"

namespace kz::compute {

enum class Pattern { random, integers, equal, one_hot, checkerboard, ramp, signs, extremes, walking };
std::span<const Pattern> all_patterns();
std::string_view to_string(Pattern p);

Matrix make(Dtype t, uint32_t rows, uint32_t cols, Pattern p, std::mt19937_64& rng, uint32_t ld = 0);

struct Dims {
  uint32_t m, n, k;
};
// Small and odd shapes, and shapes that do not fit a 16-wide array.
std::span<const Dims> awkward_shapes();

// Integers so small that every partial sum in every order is an f32 (or s32): the result must be exact.
Job exact_job(std::string name, Dtype t, const Dims& d, std::mt19937_64& rng);

}  // namespace kz::compute
