// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/blas_check.h"

#include <cblas.h>
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <vector>

namespace kz::softtpu {

namespace {

// |error| of a sum of k products in f32 is at most (k + 1) 2^-24 sum |a||b| whatever the order of summation.
std::string check_shape(int m, int n, int k, std::mt19937& rng) {
  std::uniform_real_distribution<float> draw(-1.0f, 1.0f);
  std::vector<float> a(static_cast<size_t>(m) * k), b(static_cast<size_t>(k) * n),
      c(static_cast<size_t>(m) * n, 7.0f);
  for (float& x : a) x = draw(rng);
  for (float& x : b) x = draw(rng);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0f, a.data(), k, b.data(), n, 0.0f,
              c.data(), n);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      for (int l = 0; l < k; ++l) {
        double p = double{a[static_cast<size_t>(i) * k + l]} * b[static_cast<size_t>(l) * n + j];
        sum += p;
        size += std::fabs(p);
      }
      double got = c[static_cast<size_t>(i) * n + j];
      if (!(std::fabs(got - sum) <= (k + 1) * size * 0x1p-24))
        return fmt::format("sgemm {}x{}x{}: element {},{} is {}, not {}", m, n, k, i, j, got, sum);
    }
  return {};
}

}  // namespace

std::string check_blas() {
  std::mt19937 rng(1);
  const int shapes[][3] = {{1, 1, 1},    {3, 5, 7},      {16, 16, 16},  {17, 33, 65},
                           {64, 48, 96}, {127, 65, 129}, {192, 192, 64}};
  for (const auto& s : shapes)
    if (std::string wrong = check_shape(s[0], s[1], s[2], rng); !wrong.empty()) return wrong;
  return {};
}

}  // namespace kz::softtpu
