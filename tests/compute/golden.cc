// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/compute/golden.h"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <set>

#include "shim/uapi/kz_regs.h"

namespace kz::compute {
namespace {

using Doubles = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr double unit = 0x1p-24;            // half an ulp of 1 in f32
constexpr uint32_t untouched = 0x7fc0cafe;  // what Job puts into gaps of C

double flushed(double v, bool keep) { return !keep && std::fabs(v) < FLT_MIN ? std::copysign(0.0, v) : v; }

Doubles values(const Matrix& x, bool keep_denormals) {
  Doubles d(x.rows(), x.cols());
  for (uint32_t i = 0; i < x.rows(); ++i)
    for (uint32_t j = 0; j < x.cols(); ++j) d(i, j) = flushed(x.get(i, j), keep_denormals);
  return d;
}

int32_t wrapped(int64_t v) { return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint64_t>(v))); }
int32_t saturated(int64_t v) { return static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)); }

bool one_bit(uint32_t a, double b) {
  return std::has_single_bit(a ^ std::bit_cast<uint32_t>(static_cast<float>(b)));
}

}  // namespace

std::string_view to_string(Where w) {
  return std::array<std::string_view, 5>{"element", "row", "column", "tail", "all"}.at(
      static_cast<size_t>(w));
}

std::string_view to_string(What w) {
  return std::array<std::string_view, 7>{"bits", "nan", "inf", "denormal", "sign", "wrap", "rounding"}.at(
      static_cast<size_t>(w));
}

std::string Wrong::text() const {
  return fmt::format(
      "{} wrong ({}, {}), first at [{},{}]: got 0x{:08x} ({:.9g}), want {:.9g}; largest error {:.3g}, "
      "allowed {:.3g}",
      count, to_string(where), to_string(what), i, j, got, std::bit_cast<float>(got), want, max_err, bound);
}

Golden::Golden(const Job& job, uint32_t numeric)
    : job_(job),
      numeric_(numeric),
      m_(job.m()),
      n_(job.n()),
      k_(job.k()),
      integer_(job.a.dtype() == Dtype::s8) {
  Doubles a = values(job.a, numeric & KZ_NUM_DENORM_IN || integer_);
  Doubles b = values(job.b, numeric & KZ_NUM_DENORM_IN || integer_);
  Doubles exact, magnitude = a.cwiseAbs() * b.cwiseAbs();
  if (k_ == 1)
    exact = a.col(0).replicate(1, n_).cwiseProduct(
        b.row(0).replicate(m_, 1));  // no "+ 0": the sign of zero stays
  else
    exact = a * b;
  if (job.accumulate)
    for (uint32_t i = 0; i < m_; ++i)
      for (uint32_t j = 0; j < n_; ++j) {
        uint32_t bits = job.c[size_t{i} * job.ldc + j];
        double c = integer_ ? static_cast<int32_t>(bits)
                            : flushed(std::bit_cast<float>(bits), numeric & KZ_NUM_DENORM_IN);
        exact(i, j) += c;
        magnitude(i, j) += std::fabs(c);
      }
  exact_.assign(exact.data(), exact.data() + exact.size());
  magnitude_.assign(magnitude.data(), magnitude.data() + magnitude.size());
  // s8 sums stay far below 2^53, so the f64 ones are exact.
  if (integer_)
    for (double v : exact_) sums_.push_back(static_cast<int64_t>(v));
}

double Golden::bound(uint32_t i, uint32_t j) const {
  if (integer_ || job_.exact) return 0;
  double terms = k_ + (job_.accumulate ? 1.0 : 0.0);
  double underflow = numeric_ & KZ_NUM_DENORM_OUT ? 0x1p-149 : 0x1p-126;
  return (terms + 1) * unit * magnitude_[size_t{i} * n_ + j] + terms * underflow;
}

Golden::Verdict Golden::judge_integer(uint32_t i, uint32_t j, uint32_t got) const {
  int64_t sum = sums_[size_t{i} * n_ + j];
  bool wraps = numeric_ & KZ_NUM_WRAP;
  int32_t want = wraps ? wrapped(sum) : saturated(sum), other = wraps ? saturated(sum) : wrapped(sum);
  auto value = static_cast<int32_t>(got);
  double error = std::fabs(static_cast<double>(value) - want);
  return {value == want, value == other ? What::wrap : What::bits, error};
}

Golden::Verdict Golden::judge_float(uint32_t i, uint32_t j, uint32_t bits) const {
  double want = exact(i, j), got = std::bit_cast<float>(bits);
  if (std::isnan(want)) return {std::isnan(got) || !(numeric_ & KZ_NUM_NAN), What::nan, 0};
  if (std::isnan(got)) return {false, What::nan, 0};
  // Partial sums beyond f32 may or may not overflow on the way: the order is the device's.
  bool may_overflow = magnitude_[size_t{i} * n_ + j] > FLT_MAX;
  double limit = FLT_MAX * (1 + unit);  // values from here on round to infinity
  if (std::fabs(want) >= limit) {
    if (std::isinf(want) || numeric_ & KZ_NUM_INF) {
      bool right = numeric_ & KZ_NUM_INF
                       ? std::isinf(got) && std::signbit(got) == std::signbit(want)
                       : std::fabs(got) >= FLT_MAX && std::signbit(got) == std::signbit(want);
      return {right, What::inf, 0};
    }
    return {std::fabs(got) == FLT_MAX && std::signbit(got) == std::signbit(want), What::inf, 0};
  }
  if (std::isinf(got)) return {may_overflow && !job_.exact, What::inf, 0};
  double error = std::fabs(got - want);
  // Without "+ 0" terms and with one product, the sign of a zero is known.
  if (want == 0 && got == 0 && k_ == 1 && !job_.accumulate && numeric_ & KZ_NUM_SIGNED_ZERO)
    return {std::signbit(want) == std::signbit(got), What::sign, error};
  bool flush = !(numeric_ & KZ_NUM_DENORM_OUT) && std::fabs(want) < FLT_MIN;
  if (job_.exact) {
    // Rounded once from the exact value; a flushing device may give zero instead.
    bool right = got == static_cast<double>(static_cast<float>(want)) || (flush && got == 0);
    if (right) return {};
  } else if (error <= bound(i, j) || (may_overflow && std::fabs(want) > FLT_MAX * (1 - (k_ + 2) * unit))) {
    return {};
  }
  if (std::fabs(want) < FLT_MIN || got == 0) return {false, What::denormal, error};
  if (one_bit(bits, want)) return {false, What::bits, error};
  bool small = error <= 0x1p-6 * magnitude_[size_t{i} * n_ + j];
  return {false, small ? What::rounding : What::bits, error};
}

std::optional<Wrong> Golden::judge(std::span<const uint32_t> got) const {
  Wrong w;
  std::vector<std::pair<uint32_t, uint32_t>> places;
  std::array<uint64_t, 7> kinds{};
  for (uint32_t i = 0; i < m_; ++i)
    for (uint32_t j = 0; j < job_.ldc; ++j) {
      uint32_t bits = got[size_t{i} * job_.ldc + j];
      Verdict v;
      if (j < n_)
        v = integer_ ? judge_integer(i, j, bits) : judge_float(i, j, bits);
      else
        v.right = bits == untouched;
      if (v.right) continue;
      if (w.count++ == 0) {
        w.i = i, w.j = j, w.got = bits;
        w.want = j < n_ ? exact(i, j) : std::numeric_limits<double>::quiet_NaN();
      }
      places.emplace_back(i, j);
      ++kinds.at(static_cast<size_t>(v.what));
      if (j < n_ && v.error >= w.max_err) w.max_err = v.error, w.bound = bound(i, j);
    }
  if (w.count == 0) return std::nullopt;
  w.what = static_cast<What>(std::ranges::max_element(kinds) - kinds.begin());
  w.where = place(places, got);
  return w;
}

Where Golden::place(const std::vector<std::pair<uint32_t, uint32_t>>& wrong,
                    std::span<const uint32_t> got) const {
  if (k_ % 16 != 0 && k_ > 1 && tail_missing(got, wrong.front())) return Where::tail;
  std::set<uint32_t> rows, columns, lanes;
  for (auto [i, j] : wrong) rows.insert(i), columns.insert(j), lanes.insert(j % 16);
  if (wrong.size() == 1) return Where::element;
  if (wrong.size() >= uint64_t{m_} * n_ * 9 / 10) return Where::all;
  // An array of 16 columns gives every sixteenth one to the same unit.
  if (columns.size() == 1 || (lanes.size() == 1 && wrong.size() >= m_)) return Where::column;
  if (rows.size() == 1) return Where::row;
  return Where::element;
}

// Is what stands there the sum without the last terms?
bool Golden::tail_missing(std::span<const uint32_t> got, const std::pair<uint32_t, uint32_t>& at) const {
  auto [i, j] = at;
  if (j >= n_) return false;
  uint32_t bits = got[size_t{i} * job_.ldc + j];
  double value = integer_ ? static_cast<int32_t>(bits) : std::bit_cast<float>(bits);
  double sum = exact(i, j);
  if (!std::isfinite(value) || !std::isfinite(sum)) return false;
  for (uint32_t lost = 1; lost < 16 && lost < k_; ++lost) {
    sum -= job_.a.get(i, k_ - lost) * job_.b.get(k_ - lost, j);
    if (std::fabs(sum - value) <= std::max(bound(i, j), 1e-9 * std::fabs(sum))) return sum != exact(i, j);
  }
  return false;
}

}  // namespace kz::compute
