// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/compute/vector_golden.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

namespace kz::compute {
namespace {

constexpr double u = 0x1p-24, tiny = 0x1p-149;

Expected element(VectorOp op, double x, double y) {
  auto rounded = [](double v) { return Expected{v, u * std::fabs(v) + tiny / 2}; };
  switch (op) {
    case VectorOp::add:
      return rounded(x + y);
    case VectorOp::sub:
      return rounded(x - y);
    case VectorOp::mul:
      return rounded(x * y);
    case VectorOp::max:
      return {std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y), 0};
    case VectorOp::relu:
      return {std::isnan(x) ? x : std::max(x, 0.0), 0};
    default:
      break;
  }
  if (std::isinf(x)) return {x > 0 ? x : 0, 0};
  return {0.5 * x * std::erfc(-x / std::sqrt(2.0)), 4 * u * std::fabs(x) + tiny};
}

void softmax(std::span<const float> row, std::vector<Expected>& out) {
  double top = -INFINITY, sum = 0;
  for (float x : row) top = std::max<double>(top, x);
  for (float x : row) sum += std::exp(x - top);
  for (float x : row) {
    double y = std::exp(x - top) / sum;
    out.push_back({y, (static_cast<double>(row.size()) + 16 + 2 * std::fabs(x - top)) * u * y + tiny});
  }
}

void layernorm(std::span<const float> row, std::vector<Expected>& out) {
  auto n = static_cast<double>(row.size());
  double mean = 0, variance = 0, largest = 0;
  for (float x : row) mean += x / n;
  for (float x : row)
    variance += (x - mean) * (x - mean) / n, largest = std::max(largest, std::fabs(double{x}));
  double sigma = std::sqrt(variance + 1e-5);
  for (float x : row) {
    double y = (x - mean) / sigma;
    out.push_back({y, (n + 32) * u * (std::fabs(y) + largest / sigma)});
  }
}

void sum(std::span<const float> row, std::vector<Expected>& out) {
  double total = 0, magnitude = 0;
  for (float x : row) total += x, magnitude += std::fabs(x);
  out.push_back({total, static_cast<double>(row.size()) * u * magnitude + tiny});
}

}  // namespace

std::vector<Expected> vector_golden(VectorOp op, std::span<const float> a, std::span<const float> b,
                                    uint32_t cols) {
  std::vector<Expected> out;
  if (cols == 0)
    for (size_t i = 0; i < a.size(); ++i) out.push_back(element(op, a[i], b.empty() ? 0 : b[i]));
  for (size_t i = 0; cols != 0 && i < a.size(); i += cols) {
    auto row = a.subspan(i, cols);
    if (op == VectorOp::softmax) softmax(row, out);
    if (op == VectorOp::layernorm) layernorm(row, out);
    if (op == VectorOp::sum) sum(row, out);
  }
  return out;
}

bool agrees(float got, const Expected& want) {
  if (std::isnan(want.value)) return std::isnan(got);
  if (std::fabs(want.value) >= FLT_MAX * (1 + u))
    return std::isinf(got) && std::signbit(got) == std::signbit(want.value);
  return std::fabs(got - want.value) <= want.bound;
}

}  // namespace kz::compute
