// SPDX-License-Identifier: GPL-2.0-or-later
// The order in which the gauntlet runs tests: from the ground up, and cheap before dear. It is the same for
// every row.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/kangzao/runner/catalog.h"

namespace kz::gauntlet {

// Globs of test ids, in order.
std::vector<std::string_view> order_table();

// What the gauntlet runs of the catalogue: the profile's tests that need no more than a device, in order.
// Tests that no glob fits come last, by level and id.
std::vector<TestDeclaration> ordered_tests(std::vector<TestDeclaration> tests);

}  // namespace kz::gauntlet
