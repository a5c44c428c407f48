// SPDX-License-Identifier: GPL-2.0-or-later
// The operands of a computation and the results that they must give, made by the host.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "shim/load/job.h"

namespace kz::load {

// Small whole numbers: exact in every type, and so are their products and sums. `want` has two variants of
// results: a b and b b of products, a + b and a - b of sums. No element of b is 0 or that of a, so that the
// variants differ even where they have one element.
struct Tables {
  std::vector<std::byte> a, b;  // encoded
  std::vector<std::byte> want[2];
};

// Told to stop while it prepares: products of large matrices take the host minutes.
struct Stopped {};

// Makes tables once for all workers of a process that need the same.
class TableCache {
 public:
  // `stop` is asked now and then; throws Stopped where it says so.
  explicit TableCache(std::function<bool()> stop) : stop_(std::move(stop)) {}
  // `op`: matmul or vector.
  std::shared_ptr<const Tables> get(Op op, const Job& job);
  void check_stop() const {
    if (stop_ && stop_()) throw Stopped{};
  }

 private:
  std::shared_ptr<const Tables> make(Op op, Dtype type, uint32_t n, uint64_t seed) const;
  void make_products(Tables& t, const std::vector<int>& a, const std::vector<int>& b, size_t n,
                     bool integer) const;

  std::function<bool()> stop_;
  std::map<std::tuple<Op, Dtype, uint32_t, uint64_t>, std::shared_ptr<const Tables>> made_;
};

uint64_t element_bytes(Dtype type);

}  // namespace kz::load
