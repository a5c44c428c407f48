// SPDX-License-Identifier: GPL-2.0-or-later
// The model's matmul beside the library it stands on, called directly with the same operands.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <cstring>
#include <random>

#include "tests/bench/bars.h"

namespace kz::bench {

static constexpr uint32_t n = 1024;
static constexpr uint64_t matrix_bytes = uint64_t{n} * n * sizeof(float);

static std::vector<float> random_matrix(uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> m(uint64_t{n} * n);
  for (float& x : m) x = uniform(rng);
  return m;
}

static void matmul_device(benchmark::State& state) {
  auto context = device().create_context();
  auto queue = context->open_queue();
  auto host = device().dma_buffer({.size = {matrix_bytes}});
  auto hbm = context->alloc({3 * matrix_bytes});
  for (uint64_t i : {0, 1}) {
    std::memcpy(host->bytes().data(), random_matrix(i + 1).data(), matrix_bytes);
    run_ok(*queue, {cmd::Copy{at(host->iova()), at(hbm->addr() + i * matrix_bytes), matrix_bytes}});
  }
  cmd::Matmul work{.a = hbm->addr(),
                   .b = hbm->addr() + matrix_bytes,
                   .c = hbm->addr() + 2 * matrix_bytes,
                   .m = n,
                   .n = n,
                   .k = n};
  run_ok(*queue, {work});
  for (auto _ : state) run_ok(*queue, {work});
  state.SetItemsProcessed(state.iterations());
}

static void matmul_library(benchmark::State& state) {
  auto a = random_matrix(1), b = random_matrix(2);
  std::vector<float> c(uint64_t{n} * n);
  auto product = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(),
                n);
  };
  product();
  for (auto _ : state) {
    product();
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}

std::vector<Bar> register_matmul() {
  benchmark::RegisterBenchmark("matmul_f32_1024_device", matmul_device)->UseRealTime();
  benchmark::RegisterBenchmark("matmul_f32_1024_library", matmul_library)->UseRealTime();
  return {{"matmul_f32_1024_over_library", "matmul_f32_1024_device", "matmul_f32_1024_library", '>', 0.9}};
}

}  // namespace kz::bench
