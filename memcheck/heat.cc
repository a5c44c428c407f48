// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/heat.h"

#include <algorithm>

namespace kz::memcheck {
namespace {

constexpr uint32_t dim = 512;
constexpr uint64_t matrix = uint64_t{dim} * dim * 4;

Dtype best_dtype(const Capabilities& caps) {
  if (caps.has(Cap::matmul_f32)) return Dtype::f32;
  if (caps.has(Cap::matmul_bf16)) return Dtype::bf16;
  if (caps.has(Cap::matmul_f16)) return Dtype::f16;
  return Dtype::s8;
}

}  // namespace

Heater::Heater(Device& device, Context& context)
    : device_(device), block_(context.alloc({3 * matrix})), queue_(test::open_queue(device, context)) {
  uint32_t n = std::min(dim, device.capabilities().limits.max_dim);
  work_ = {.a = block_->addr(),
           .b = block_->addr() + matrix,
           .c = block_->addr() + 2 * matrix,
           .m = n,
           .n = n,
           .k = n,
           .dtype = best_dtype(device.capabilities())};
  // Small values that are numbers in every type.
  run_ok(*queue_, {cmd::Fill{at(work_.a), 2 * matrix, 0x3c013c013c013c01}});
}

void Heater::step() {
  for (unsigned i = 0; i < std::min(8u, queue_->depth()); ++i) queue_->submit({work_}, true);
  queue_->ring();
  test::finish(*queue_, std::chrono::seconds(10));
}

Heat Heater::until_plateau(std::chrono::duration<double> budget) {
  auto core = [&] { return device_.telemetry().core_celsius.value_or(0); };
  Heat heat{.start_celsius = core()};
  Deadline deadline(std::chrono::duration_cast<std::chrono::nanoseconds>(budget));
  for (double last = heat.start_celsius; !deadline.passed() && !heat.plateau;) {
    Deadline second(std::chrono::seconds(1));
    while (!second.passed() && !deadline.passed()) step();
    double now = core();
    heat.plateau = second.passed() && now - last < 0.5;
    last = now;
  }
  Telemetry t = device_.telemetry();
  heat.end_celsius = t.core_celsius.value_or(0);
  heat.hbm_celsius = t.hbm_celsius.value_or(heat.end_celsius);
  heat.seconds = std::chrono::duration<double>(deadline.elapsed()).count();
  return heat;
}

}  // namespace kz::memcheck
