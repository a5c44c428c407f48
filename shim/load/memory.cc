// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/memory.h"

#include <algorithm>
#include <cstring>

#include "shim/base/error.h"

namespace kz::load {
namespace {

constexpr uint64_t piece_alignment = 4096;

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
                         unsigned slots, TableCache& tables)
    : op_(op), job_(job), seen_(slots, 1) {
  size_t n = op == Op::matmul ? size_t{job.dim} * job.dim : job.elements;
  operand_ = align_up(n * element_bytes(op == Op::matmul ? job.dtype : Dtype::f32), piece_alignment);
  result_ = align_up(n * 4, piece_alignment);
  block_ = context.alloc({2 * operand_ + slots * result_});  // first: it may be refused
  tables_ = tables.get(op, job);
  load(device, queue, tables);
}

// The operands, and something that is no result where results will be: an earlier load may have left right
// ones.
void Calculation::load(Device& device, Queue& queue, const TableCache& tables) {
  auto staging = device.dma_buffer({.size = {std::max(operand_, result_)}});
  for (const auto* bytes : {&tables_->a, &tables_->b}) {
    std::ranges::copy(*bytes, staging->bytes().begin());
    HbmAddr to = block_->addr() + (bytes == &tables_->b ? operand_ : 0);
    run_ok(queue, {cmd::Copy{at(staging->iova()), at(to), bytes->size()}});
  }
  mark_unwritten(staging->bytes());
  for (uint32_t s = 0; s < seen_.size(); ++s) {
    tables.check_stop();
    run_ok(queue, {cmd::Copy{at(staging->iova()), at(result(s)), result_bytes()}});
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
  if (op_ == Op::matmul && job_.dtype == Dtype::s8) return std::ranges::equal(got, want(variant));
  for (size_t i = 0; i < got.size(); i += 4) {  // by value: a device may give either zero
    float g, w;
    std::memcpy(&g, &got[i], 4);
    std::memcpy(&w, &want(variant)[i], 4);
    if (!(g == w)) return false;
  }
  return true;
}

HostSlots::HostSlots(Device& device, unsigned slots, uint64_t bytes_each)
    : each_(align_up(bytes_each, piece_alignment)), buffer_(device.dma_buffer({.size = {slots * each_}})) {}

}  // namespace kz::load
