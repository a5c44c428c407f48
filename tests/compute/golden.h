// SPDX-License-Identifier: GPL-2.0-or-later
// What a matmul must give: computed on the host in f64 (integers in 64 bits), judged by the numeric contract
// that the device declares (KZ_NUM_*, shim/uapi/kz_regs.h). Nothing here touches a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shim/command.h"
#include "shim/uapi/kz_regs.h"

namespace kz::compute {

uint32_t element_size(Dtype t);  // bytes: 1, 2, 2, 4

// Row-major, `ld` elements between rows; the gap between rows holds a filler that no product may depend on.
class Matrix {
 public:
  Matrix(Dtype t, uint32_t rows, uint32_t cols, uint32_t ld = 0);
  Dtype dtype() const { return dtype_; }
  uint32_t rows() const { return rows_; }
  uint32_t cols() const { return cols_; }
  uint32_t ld() const { return ld_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Rounds to nearest even into the type; s8 must be given an integer in range.
  void set(uint32_t i, uint32_t j, double value);
  void set_bits(uint32_t i, uint32_t j, uint32_t bits);
  uint32_t bits(uint32_t i, uint32_t j) const;
  double get(uint32_t i, uint32_t j) const;
  template <class F>  // value of (i, j)
  void fill(F value) {
    for (uint32_t i = 0; i < rows_; ++i)
      for (uint32_t j = 0; j < cols_; ++j) set(i, j, value(i, j));
  }

 private:
  size_t at(uint32_t i, uint32_t j) const { return (size_t{i} * ld_ + j) * element_size(dtype_); }

  Dtype dtype_;
  uint32_t rows_, cols_, ld_;
  std::vector<std::byte> bytes_;
};

// A matmul and what it starts from. `c` holds 32-bit words, m x ldc; used as operand only where `accumulate`.
struct Job {
  std::string name;
  Matrix a, b;
  uint32_t ldc = 0;
  bool accumulate = false;
  std::vector<uint32_t> c;  // before: m * ldc words
  // The exact result is an f32 and so is every partial sum in every order (small integers): no rounding is
  // allowed.
  bool exact = false;

  Job(std::string job_name, Matrix left, Matrix right, uint32_t gap = 0);
  uint32_t m() const { return a.rows(); }
  uint32_t n() const { return b.cols(); }
  uint32_t k() const { return a.cols(); }
};

enum class Where { element, row, column, tail, all };
enum class What { bits, nan, inf, denormal, sign, wrap, rounding };
std::string_view to_string(Where w);
std::string_view to_string(What w);

struct Wrong {
  uint64_t count = 0;
  Where where = Where::element;
  What what = What::bits;
  uint32_t i = 0, j = 0;          // first
  uint32_t got = 0;               // bits of the first
  double want = 0;                // of the first
  double max_err = 0, bound = 0;  // largest error, and the bound at that place
  std::string text() const;
};

class Golden {
 public:
  // `numeric`: KZ_NUM_* of the job's type.
  Golden(const Job& job, uint32_t numeric);
  // `got`: m * ldc words as the device left them. Also checks that the gaps between rows were not written.
  std::optional<Wrong> judge(std::span<const uint32_t> got) const;
  double exact(uint32_t i, uint32_t j) const { return exact_[size_t{i} * n_ + j]; }
  // |error| allowed: (terms + 1) 2^-24 sum|a||b| and the underflow of each term.
  double bound(uint32_t i, uint32_t j) const;

 private:
  struct Verdict {
    bool right = true;
    What what = What::bits;
    double error = 0;
  };
  Verdict judge_float(uint32_t i, uint32_t j, uint32_t got) const;
  Verdict judge_integer(uint32_t i, uint32_t j, uint32_t got) const;
  Where place(const std::vector<std::pair<uint32_t, uint32_t>>& wrong, std::span<const uint32_t> got) const;
  bool tail_missing(std::span<const uint32_t> got, const std::pair<uint32_t, uint32_t>& at) const;

  const Job& job_;
  uint32_t numeric_, m_, n_, k_;
  bool integer_;
  std::vector<double> exact_, magnitude_;
  std::vector<int64_t> sums_;
};

}  // namespace kz::compute
