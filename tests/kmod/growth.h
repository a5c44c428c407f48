// SPDX-License-Identifier: GPL-2.0-or-later
// A cycle repeated many times, and whether the kernel grew with it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kz::test {

// Runs `cycle` at least 16 times and looks at the kernel after each. What seems to grow must do so in a
// second run of the same length, and not while nothing is done, before it fails the test. Reports the slopes,
// and the rate of failing cycles that so many clean ones exclude. `name` is that of the metrics.
void judge_growth(const std::string& name, uint64_t cycles, const std::function<void()>& cycle);

}  // namespace kz::test
