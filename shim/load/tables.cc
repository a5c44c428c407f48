// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

namespace kz::load {
namespace {

void put_number(std::byte* to, int v, Dtype t) {
  float f = static_cast<float>(v);
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (t == Dtype::f32) std::memcpy(to, &bits, 4);
  if (t == Dtype::s8) *to = static_cast<std::byte>(static_cast<int8_t>(v));
  if (t == Dtype::bf16) {
    auto half = static_cast<uint16_t>(bits >> 16);
    std::memcpy(to, &half, 2);
  }
  if (t == Dtype::f16) {  // exponent bias 15 for 127, 10 bits of mantissa for 23
    uint16_t half = v == 0 ? 0
                           : static_cast<uint16_t>((bits >> 31 << 15) | (((bits >> 23 & 0xff) - 112) << 10) |
                                                   (bits >> 13 & 0x3ff));
    std::memcpy(to, &half, 2);
  }
}

std::vector<std::byte> encoded(const std::vector<int>& values, Dtype t) {
  uint64_t each = element_bytes(t);
  std::vector<std::byte> out(values.size() * each);
  for (size_t i = 0; i < values.size(); ++i) put_number(&out[i * each], values[i], t);
  return out;
}

void put_result(std::vector<std::byte>& to, size_t i, int64_t value, bool integer) {
  if (integer) {
    auto v = static_cast<int32_t>(value);
    std::memcpy(&to[i * 4], &v, 4);
  } else {
    auto v = static_cast<float>(value);
    std::memcpy(&to[i * 4], &v, 4);
  }
}

// a + b and a - b.
void make_sums(Tables& t, const std::vector<int>& a, const std::vector<int>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    put_result(t.want[0], i, a[i] + b[i], false);
    put_result(t.want[1], i, a[i] - b[i], false);
  }
}

}  // namespace

uint64_t element_bytes(Dtype t) { return t == Dtype::s8 ? 1 : t == Dtype::f32 ? 4 : 2; }

std::shared_ptr<const Tables> TableCache::get(Op op, const Job& job) {
  bool product = op == Op::matmul;
  uint32_t n = product ? job.dim : job.elements;
  Dtype type = product ? job.dtype : Dtype::f32;
  auto& made = made_[{op, type, n, job.seed}];
  if (!made) made = make(op, type, n, job.seed);
  return made;
}

std::shared_ptr<const Tables> TableCache::make(Op op, Dtype type, uint32_t n, uint64_t seed) const {
  std::mt19937_64 rng(seed + 17);
  size_t elements = op == Op::matmul ? size_t{n} * n : n;
  std::vector<int> a(elements), b(elements);
  auto draw = [&] { return static_cast<int>(rng() % 17) - 8; };
  for (size_t i = 0; i < elements; ++i) {
    a[i] = draw();
    do b[i] = draw();
    while (b[i] == 0 || b[i] == a[i]);
  }
  auto t = std::make_shared<Tables>();
  t->a = encoded(a, type);
  t->b = encoded(b, type);
  for (auto& w : t->want) w.resize(elements * 4);
  if (op == Op::matmul)
    make_products(*t, a, b, n, type == Dtype::s8);
  else
    make_sums(*t, a, b);
  return t;
}

void TableCache::make_products(Tables& t, const std::vector<int>& a, const std::vector<int>& b, size_t n,
                               bool integer) const {
  std::vector<int64_t> row(n);
  for (unsigned variant = 0; variant < 2; ++variant) {
    const auto& l = variant == 0 ? a : b;
    for (size_t i = 0; i < n; ++i) {
      check_stop();
      std::ranges::fill(row, 0);
      for (size_t k = 0; k < n; ++k)
        for (size_t j = 0; j < n; ++j) row[j] += int64_t{l[i * n + k]} * b[k * n + j];
      for (size_t j = 0; j < n; ++j) put_result(t.want[variant], i * n + j, row[j], integer);
    }
  }
}

}  // namespace kz::load
