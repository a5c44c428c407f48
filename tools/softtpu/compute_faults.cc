// SPDX-License-Identifier: GPL-2.0-or-later
// A matrix unit with a planted fault. Speed does not matter here; that the fault is the one of the catalogue
// does.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "tools/softtpu/compute.h"
#include "tools/softtpu/fault_board.h"

namespace kz::softtpu {
namespace {

constexpr uint64_t array_side = 16;  // PEs on a side of the systolic array

bool denormal(float f) { return f != 0 && std::abs(f) < std::numeric_limits<float>::min(); }

// Rounds to `bits` bits of mantissa.
float shorten(float f, unsigned bits) {
  if (!std::isfinite(f)) return f;
  uint32_t u = std::bit_cast<uint32_t>(f), drop = 23 - bits, half = 1u << (drop - 1);
  u = (u + half - 1 + ((u >> drop) & 1)) & ~((1u << drop) - 1);
  return std::bit_cast<float>(u);
}

int32_t wrap_to(int64_t v, unsigned bits) {
  return static_cast<int32_t>(static_cast<int64_t>(static_cast<uint64_t>(v) << (64 - bits)) >> (64 - bits));
}

// Every operation rounds toward zero (C04).
void product_truncated(const Shape& s, const float* a, const float* b, float* c) {
  int before = std::fegetround();
  std::fesetround(FE_TOWARDZERO);
  for (uint64_t i = 0; i < s.m; ++i)
    for (uint64_t x = 0; x < s.k; ++x) {
      volatile float factor = a[i * s.lda + x];  // keeps the arithmetic at run time, where the mode holds
      for (uint64_t j = 0; j < s.n; ++j) {
        float term = factor * b[x * s.ldb + j];
        c[i * s.ldc + j] = x == 0 && !s.accumulate ? term : c[i * s.ldc + j] + term;
      }
    }
  std::fesetround(before);
}

}  // namespace

ComputeFaults::ComputeFaults(FaultBoard& board, const kz_matmul& m, double celsius, uint64_t draw)
    : dtype_(m.dtype), draw_(draw) {
  auto ask = [&](Params& p, Row row, bool can_act, const char* a = nullptr, const char* b = nullptr,
                 const char* c = nullptr) {
    const Fault* f = can_act ? board.due(row) : nullptr;
    if (f == nullptr) return;
    any_ = p.on = true;
    if (a != nullptr) p.a = f->param(a);
    if (b != nullptr) p.b = f->param(b);
    if (c != nullptr) p.c = f->param(c);
  };
  bool real = m.dtype != KZ_DT_S8;
  ask(flip_, Row::C01, true, "bit");
  ask(dead_pe_, Row::C02, true, "column", "row");
  ask(few_bits_, Row::C03, true, "bits");
  ask(truncate_, Row::C04, real);
  ask(nan_, Row::C05, real);
  ask(inf_, Row::C06, real);
  ask(denormal_, Row::C07, real);
  ask(saturate_, Row::C08, !real);
  const Fault* pattern = board.active(Row::C09);
  ask(pattern_, Row::C09, pattern != nullptr && pattern->uparam("dtype") == m.dtype, "a", "b");
  const Fault* hot = board.active(Row::C10);
  ask(hot_, Row::C10, hot != nullptr && celsius > hot->param("celsius"), "bit");
  ask(tail_, Row::C11, m.k % array_side != 0, "lost");
  ask(unstable_, Row::C12, real && m.k > 1);
  ask(minus_zero_, Row::C13, real);
  ask(constant_, Row::C14, true, "row", "column", "bit");
  ask(cancelling_, Row::C15, m.m > 1 && m.n > 1, "bit");
}

bool ComputeFaults::multiply(Shape s, std::vector<float>& a, std::vector<float>& b, std::byte* c,
                             std::span<const std::byte> raw_a, std::span<const std::byte> raw_b,
                             const std::atomic<bool>* cancel) const {
  spoil_operands(s, a, b, raw_a);
  if (tail_.on) {
    s.k -= std::min<uint64_t>(static_cast<uint64_t>(tail_.a), s.k % array_side);
    if (s.k == 0 && !s.accumulate) std::memset(c, 0, s.m * s.n * 4);
  }
  if (s.k != 0 && !product(s, a, b, c, cancel)) return false;
  if (pattern_.on && dtype_ == KZ_DT_S8) pattern_pair(s, c, raw_a, raw_b);
  spoil_result(s, c);
  return true;
}

void ComputeFaults::spoil_operands(const Shape& s, std::vector<float>& a, std::vector<float>& b,
                                   std::span<const std::byte> raw_a) const {
  for (auto* operand : {&a, &b})
    for (float& x : *operand) {
      if (nan_.on && std::isnan(x)) x = 0;
      // f16 has denormals of its own, which are normal numbers once widened.
      bool tiny = dtype_ == KZ_DT_F16 ? x != 0 && std::abs(x) < 0x1p-14f : denormal(x);
      if (denormal_.on && tiny) x = std::copysign(0.0f, x);
    }
  if (dead_pe_.on) {
    uint64_t column = static_cast<uint64_t>(dead_pe_.a) % s.n, row = static_cast<uint64_t>(dead_pe_.b);
    for (uint64_t x = row < s.k ? row : 0; x < s.k; x += array_side) b[x * s.n + column] = 0;
  }
  if (pattern_.on && dtype_ != KZ_DT_S8) {
    auto wanted = static_cast<uint16_t>(pattern_.a);
    uint16_t exponent = dtype_ == KZ_DT_F16 ? 0x7c00 : 0x7f80;
    if ((wanted & exponent) == exponent)
      wanted &= static_cast<uint16_t>(~0x4000);  // a number, not NaN or Inf
    for (uint64_t i = 0; i < a.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, raw_a.data() + 2 * i, 2);
      uint16_t misread = wanted ^ 8;
      if (bits == wanted) a[i] = dtype_ == KZ_DT_F16 ? f16_to_f32(misread) : bf16_to_f32(misread);
    }
  }
}

bool ComputeFaults::product(const Shape& s, const std::vector<float>& a, const std::vector<float>& b,
                            std::byte* c, const std::atomic<bool>* cancel) const {
  auto* out = reinterpret_cast<float*>(c);
  if (truncate_.on) {
    product_truncated(s, a.data(), b.data(), out);
    return true;
  }
  if (!few_bits_.on && !unstable_.on) {
    if (dtype_ == KZ_DT_S8)
      return product_s8(s, a.data(), b.data(), reinterpret_cast<int32_t*>(c), saturate_.on, cancel);
    return product_f32(s, a.data(), b.data(), out, cancel);
  }
  // Sums up pieces of K: of 16 terms with a short accumulator after each (C03), or two pieces, cut where it
  // happens to be, the upper one first (C12).
  uint64_t cut = unstable_.on ? 1 + draw_ % (s.k - 1) : 0;
  std::vector<float> part(s.m * s.n);
  for (uint64_t done = 0; done < s.k;) {
    uint64_t n = unstable_.on ? (done == 0 ? s.k - cut : cut) : std::min(array_side, s.k - done);
    uint64_t at = unstable_.on ? (done == 0 ? cut : 0) : done;
    Shape p{s.m, s.n, n, s.lda, s.ldb, s.n, false};
    if (!product_f32(p, a.data() + at, b.data() + at * s.ldb, part.data(), cancel)) return false;
    for (uint64_t i = 0; i < part.size(); ++i) {
      bool keep = done != 0 || s.accumulate;
      auto bits = static_cast<unsigned>(few_bits_.a);
      if (dtype_ == KZ_DT_S8) {
        auto* sums = reinterpret_cast<int32_t*>(c);
        sums[i] = wrap_to((keep ? int64_t{sums[i]} : 0) + static_cast<int64_t>(part[i]), bits + 8);
      } else {
        float sum = keep ? out[i] + part[i] : part[i];
        out[i] = few_bits_.on ? shorten(sum, bits) : sum;
      }
    }
    done += n;
  }
  return true;
}

// C09 for s8: one pair of operands gives a product that is one too small.
void ComputeFaults::pattern_pair(const Shape& s, std::byte* c, std::span<const std::byte> raw_a,
                                 std::span<const std::byte> raw_b) const {
  auto* sums = reinterpret_cast<uint32_t*>(c);
  auto first = static_cast<std::byte>(static_cast<unsigned>(pattern_.a) & 0xff);
  auto second = static_cast<std::byte>(static_cast<unsigned>(pattern_.b) & 0xff);
  for (uint64_t x = 0; x < s.k; ++x)
    for (uint64_t i = 0; i < s.m; ++i) {
      if (raw_a[i * s.lda + x] != first) continue;
      for (uint64_t j = 0; j < s.n; ++j)
        if (raw_b[x * s.ldb + j] == second) --sums[i * s.n + j];
    }
}

void ComputeFaults::flip(const Shape& s, std::byte* c, uint64_t row, uint64_t col, unsigned bit) const {
  uint32_t v;
  std::byte* at = c + (row % s.m * s.n + col % s.n) * 4;
  std::memcpy(&v, at, 4);
  v ^= 1u << bit;
  std::memcpy(at, &v, 4);
}

void ComputeFaults::spoil_result(const Shape& s, std::byte* c) const {
  if (dtype_ != KZ_DT_S8 && (inf_.on || denormal_.on || minus_zero_.on || nan_.on))
    for (uint64_t i = 0; i < s.m * s.n; ++i) {
      float& f = reinterpret_cast<float*>(c)[i];
      if (nan_.on && std::isnan(f)) f = 0;
      if (inf_.on && std::isinf(f)) f = std::copysign(std::numeric_limits<float>::max(), f);
      if (denormal_.on && denormal(f)) f = std::copysign(0.0f, f);
      if (minus_zero_.on && f == 0) f = 0;
    }
  uint64_t row = draw_ % s.m, col = (draw_ >> 32) % s.n;
  if (flip_.on) flip(s, c, row, col, static_cast<unsigned>(flip_.a));
  if (hot_.on) flip(s, c, row, col, static_cast<unsigned>(hot_.a));
  if (constant_.on)
    flip(s, c, static_cast<uint64_t>(constant_.a), static_cast<uint64_t>(constant_.b),
         static_cast<unsigned>(constant_.c));
  // A sum of two pieces may round as the whole does: one last bit shows which run it was.
  if (unstable_.on) flip(s, c, row, col, 0);
  if (cancelling_.on) cancelling(s, c);
}

// C15: +d and -d in two places of one row and of another, in the same two columns: all row and column sums
// stay.
void ComputeFaults::cancelling(const Shape& s, std::byte* c) const {
  uint64_t rows[2] = {draw_ % s.m, 0}, cols[2] = {(draw_ >> 32) % s.n, 0};
  rows[1] = (rows[0] + 1) % s.m;
  cols[1] = (cols[0] + 1) % s.n;
  auto bit = static_cast<unsigned>(cancelling_.a);
  auto* floats = reinterpret_cast<float*>(c);
  auto* ints = reinterpret_cast<uint32_t*>(c);
  float largest = 0;
  for (uint64_t r : rows)
    for (uint64_t j : cols)
      if (dtype_ != KZ_DT_S8) largest = std::max(largest, std::abs(floats[r * s.n + j]));
  float step =
      std::isnormal(largest) ? std::ldexp(1.0f, std::ilogb(largest) - 23 + static_cast<int>(bit)) : 1;
  for (int r = 0; r < 2; ++r)
    for (int j = 0; j < 2; ++j) {
      uint64_t at = rows[r] * s.n + cols[j];
      if (dtype_ == KZ_DT_S8)
        ints[at] += r == j ? 1u << bit : 0u - (1u << bit);
      else
        floats[at] += r == j ? step : -step;
    }
}

}  // namespace kz::softtpu
