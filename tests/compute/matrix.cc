// SPDX-License-Identifier: GPL-2.0-or-later
#include <Eigen/Core>
#include <bit>
#include <cstring>

#include "tests/compute/golden.h"

namespace kz::compute {
namespace {

// NaN in the gap of float matrices: a product that reads it shows it.
uint32_t filler(Dtype t) {
  switch (t) {
    case Dtype::s8:
      return 0x5b;
    case Dtype::bf16:
      return 0x7fc1;
    case Dtype::f16:
      return 0x7e01;
    case Dtype::f32:
      break;
  }
  return 0x7fc00001;
}

uint32_t encode(Dtype t, double value) {
  switch (t) {
    case Dtype::s8:
      return static_cast<uint8_t>(static_cast<int8_t>(value));
    case Dtype::bf16:
      return Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(static_cast<float>(value)));
    case Dtype::f16:
      return Eigen::numext::bit_cast<uint16_t>(Eigen::half(static_cast<float>(value)));
    case Dtype::f32:
      break;
  }
  return std::bit_cast<uint32_t>(static_cast<float>(value));
}

double decode(Dtype t, uint32_t bits) {
  switch (t) {
    case Dtype::s8:
      return static_cast<int8_t>(bits);
    case Dtype::bf16:
      return std::bit_cast<float>(bits << 16);
    case Dtype::f16:
      return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(static_cast<uint16_t>(bits)));
    case Dtype::f32:
      break;
  }
  return std::bit_cast<float>(bits);
}

}  // namespace

uint32_t element_size(Dtype t) { return t == Dtype::s8 ? 1 : t == Dtype::f32 ? 4 : 2; }

Matrix::Matrix(Dtype t, uint32_t rows, uint32_t cols, uint32_t ld)
    : dtype_(t),
      rows_(rows),
      cols_(cols),
      ld_(ld == 0 ? cols : ld),
      bytes_(size_t{rows} * ld_ * element_size(t)) {
  for (uint32_t i = 0; i < rows_; ++i)
    for (uint32_t j = cols_; j < ld_; ++j) set_bits(i, j, filler(t));
}

void Matrix::set(uint32_t i, uint32_t j, double value) { set_bits(i, j, encode(dtype_, value)); }

void Matrix::set_bits(uint32_t i, uint32_t j, uint32_t bits) {
  std::memcpy(bytes_.data() + at(i, j), &bits, element_size(dtype_));
}

uint32_t Matrix::bits(uint32_t i, uint32_t j) const {
  uint32_t v = 0;
  std::memcpy(&v, bytes_.data() + at(i, j), element_size(dtype_));
  return v;
}

double Matrix::get(uint32_t i, uint32_t j) const { return decode(dtype_, bits(i, j)); }

Job::Job(std::string job_name, Matrix left, Matrix right, uint32_t gap)
    : name(std::move(job_name)),
      a(std::move(left)),
      b(std::move(right)),
      ldc(b.cols() + gap),
      c(size_t{a.rows()} * ldc, 0x7fc0cafe) {}

}  // namespace kz::compute
