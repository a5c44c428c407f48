// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "shim/base/error.h"

namespace kz::load {
namespace {

constexpr uint64_t piece_alignment = 4096;

uint64_t element_bytes(Dtype t) { return t == Dtype::s8 ? 1 : t == Dtype::f32 ? 4 : 2; }

// Small whole numbers are exact in every type, and so are their products and sums.
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

}  // namespace

Homes::Homes(Context& context, unsigned count, uint64_t bytes_each)
    : block_(context.alloc({count * align_up(bytes_each, piece_alignment)})), homes_(count) {
  for (uint32_t i = 0; i < count; ++i) {
    homes_[i].addr = block_->addr() + i * align_up(bytes_each, piece_alignment);
    idle_.push_back(i);
  }
}

uint32_t Homes::take(std::mt19937_64& rng, bool to_read) {
  size_t first = rng() % idle_.size(), at = first;
  while (to_read && !homes_[idle_[at]].known && (at = (at + 1) % idle_.size()) != first) continue;
  std::swap(idle_[at], idle_.back());
  uint32_t taken = idle_.back();
  idle_.pop_back();
  return taken;
}

Calculation::Calculation(Op op, const Job& job, Device& device, Context& context, Queue& queue,
                         unsigned slots)
    : op_(op), job_(job), seen_(slots, 1) {
  Dtype type = op == Op::matmul ? job.dtype : Dtype::f32;
  size_t n = op == Op::matmul ? size_t{job.dim} * job.dim : job.elements;
  std::mt19937_64 rng(job.seed + 17);
  std::vector<int> a(n), b(n);
  // No element of b is 0 or that of a: even of one element, the variants have different results.
  for (size_t i = 0; i < n; ++i) {
    a[i] = static_cast<int>(rng() % 17) - 8;
    do b[i] = static_cast<int>(rng() % 17) - 8;
    while (b[i] == 0 || b[i] == a[i]);
  }
  for (auto& w : want_) w.resize(n * 4);
  op == Op::matmul ? make_products(a, b) : make_sums(a, b);

  operand_ = align_up(n * element_bytes(type), piece_alignment);
  result_ = align_up(n * 4, piece_alignment);
  block_ = context.alloc({2 * operand_ + slots * result_});
  load(device, queue, a, b);
}

// The operands, and something that is no result where results will be: an earlier load may have left right
// ones.
void Calculation::load(Device& device, Queue& queue, const std::vector<int>& a, const std::vector<int>& b) {
  Dtype type = op_ == Op::matmul ? job_.dtype : Dtype::f32;
  auto staging = device.dma_buffer({.size = {std::max(operand_, result_)}});
  for (unsigned i = 0; i < 2; ++i) {
    auto bytes = encoded(i == 0 ? a : b, type);
    std::ranges::copy(bytes, staging->bytes().begin());
    run_ok(queue, {cmd::Copy{at(staging->iova()), at(block_->addr() + i * operand_), bytes.size()}});
  }
  mark_unwritten(staging->bytes());
  for (uint32_t s = 0; s < seen_.size(); ++s)
    run_ok(queue, {cmd::Copy{at(staging->iova()), at(result(s)), result_bytes()}});
}

// A B and B B.
void Calculation::make_products(const std::vector<int>& a, const std::vector<int>& b) {
  size_t n = job_.dim;
  std::vector<int64_t> row(n);
  for (unsigned variant = 0; variant < 2; ++variant) {
    const auto& l = variant == 0 ? a : b;
    for (size_t i = 0; i < n; ++i) {
      std::ranges::fill(row, 0);
      for (size_t k = 0; k < n; ++k)
        for (size_t j = 0; j < n; ++j) row[j] += int64_t{l[i * n + k]} * b[k * n + j];
      for (size_t j = 0; j < n; ++j) put_result(want_[variant], i * n + j, row[j], job_.dtype == Dtype::s8);
    }
  }
}

// a + b and a - b.
void Calculation::make_sums(const std::vector<int>& a, const std::vector<int>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    put_result(want_[0], i, a[i] + b[i], false);
    put_result(want_[1], i, a[i] - b[i], false);
  }
}

Command Calculation::command(uint32_t slot, unsigned variant) const {
  HbmAddr a = block_->addr(), b = a + operand_;
  if (op_ == Op::vector)
    return {cmd::Vector{a, b, result(slot), job_.elements, 0, variant == 0 ? VectorOp::add : VectorOp::sub}};
  return {cmd::Matmul{.a = variant == 0 ? a : b,
                      .b = b,
                      .c = result(slot),
                      .m = job_.dim,
                      .n = job_.dim,
                      .k = job_.dim,
                      .dtype = job_.dtype}};
}

bool Calculation::right(std::span<const std::byte> got, unsigned variant) const {
  if (op_ == Op::matmul && job_.dtype == Dtype::s8) return std::ranges::equal(got, want_[variant]);
  for (size_t i = 0; i < got.size(); i += 4) {  // by value: a device may give either zero
    float g, w;
    std::memcpy(&g, &got[i], 4);
    std::memcpy(&w, &want_[variant][i], 4);
    if (!(g == w)) return false;
  }
  return true;
}

HostSlots::HostSlots(Device& device, unsigned slots, uint64_t bytes_each)
    : each_(align_up(bytes_each, piece_alignment)), buffer_(device.dma_buffer({.size = {slots * each_}})) {}

}  // namespace kz::load
