// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/compute/operands.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kz::compute {
namespace {

constexpr std::array patterns = {Pattern::random,  Pattern::integers,     Pattern::equal,
                                 Pattern::one_hot, Pattern::checkerboard, Pattern::ramp,
                                 Pattern::signs,   Pattern::extremes,     Pattern::walking};

constexpr std::array<Dims, 14> shapes = {{{1, 1, 1},
                                          {7, 5, 3},
                                          {16, 16, 16},
                                          {17, 33, 65},
                                          {64, 64, 40},
                                          {64, 64, 7},
                                          {128, 128, 128},
                                          {1, 1000, 1},
                                          {1000, 1, 1},
                                          {1, 1, 1000},
                                          {31, 2, 257},
                                          {2, 129, 15},
                                          {5, 16, 513},
                                          {100, 100, 100}}};

// The largest magnitudes whose products and sums stay finite in f32.
double extreme(Dtype t) {
  switch (t) {
    case Dtype::s8:
      return 127;
    case Dtype::f16:
      return 65504;
    default:
      return 0x1.fep+55;
  }
}

double value(Dtype t, Pattern p, uint32_t i, uint32_t j, std::mt19937_64& rng) {
  bool s8 = t == Dtype::s8;
  auto integer = [&](int low, int high) {
    return static_cast<double>(std::uniform_int_distribution<int>(low, high)(rng));
  };
  switch (p) {
    case Pattern::random:
      return s8 ? integer(-128, 127)
                : std::ldexp(std::uniform_real_distribution<double>(-1, 1)(rng),
                             static_cast<int>(integer(-6, 6)));
    case Pattern::integers:
      return integer(-8, 8);
    case Pattern::equal:
      return s8 ? 77 : 1.375;
    case Pattern::one_hot:
      return i == j ? 1 : 0;
    case Pattern::checkerboard:
      return s8 ? ((i + j) % 2 ? 0x55 : -0x56) : ((i + j) % 2 ? 1.3125 : -0.65625);
    case Pattern::ramp:
      return s8 ? static_cast<int8_t>(i * 3 + j) : (i * 3 + j) % 97 - 48.0;
    case Pattern::signs:
      return i % 2 ? -1 : 1;
    case Pattern::extremes:
      return (rng() & 1 ? 1 : -1) * (rng() & 1 ? extreme(t) : 1);
    case Pattern::walking:
      return s8 ? static_cast<int8_t>(1u << (i + j) % 8)
                : std::ldexp(1.0, static_cast<int>((i + j) % 15) - 7);
  }
  return 0;
}

}  // namespace

std::span<const Pattern> all_patterns() { return patterns; }

std::string_view to_string(Pattern p) {
  return std::array<std::string_view, 9>{"random", "integers", "equal",    "one-hot", "checkerboard",
                                         "ramp",   "signs",    "extremes", "walking"}
      .at(static_cast<size_t>(p));
}

Matrix make(Dtype t, uint32_t rows, uint32_t cols, Pattern p, std::mt19937_64& rng, uint32_t ld) {
  Matrix x(t, rows, cols, ld);
  x.fill([&](uint32_t i, uint32_t j) { return value(t, p, i, j, rng); });
  return x;
}

std::span<const Dims> awkward_shapes() { return shapes; }

Job exact_job(std::string name, Dtype t, const Dims& d, std::mt19937_64& rng) {
  // Sum of |a||b| below 2^24; 8-bit significands hold every integer up to 256.
  double most = t == Dtype::s8 ? 127 : std::min(255.0, std::floor(std::sqrt(0x1p24 / d.k) - 1));
  auto draw = [&](uint32_t, uint32_t) {
    double magnitude =
        std::uniform_int_distribution<int>(static_cast<int>(most / 2), static_cast<int>(most))(rng);
    return rng() % 4 == 0 ? -magnitude : magnitude;
  };
  Job job(std::move(name), Matrix(t, d.m, d.k), Matrix(t, d.k, d.n));
  job.a.fill(draw);
  job.b.fill(draw);
  job.exact = true;
  return job;
}

}  // namespace kz::compute
