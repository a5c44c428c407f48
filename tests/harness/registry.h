// SPDX-License-Identifier: GPL-2.0-or-later
// The declarations of this program's tests, as `--kz-list` prints them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/harness/test.h"

namespace kz::test {

// "pcie_link", "retrain_under_load" -> "pcie.link.retrain_under_load"
std::string test_id(std::string_view suite, std::string_view test);
// The declaration of a gtest suite and test; null for tests that were not made with KZ_TEST.
const TestInfo* find_declaration(std::string_view suite, std::string_view test);
// All declarations in the order of their ids; time limits are those of the profile in KANGZAO_PROFILE.
nlohmann::json list_declarations(const std::string& program);

}  // namespace kz::test
