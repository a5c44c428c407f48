// SPDX-License-Identifier: GPL-2.0-or-later
// Names that a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kz {

// Levenshtein distance.
size_t edit_distance(std::string_view a, std::string_view b);
// The words in `known` closest to `word`, best first, at most three; none that differ in more than half of it.
std::vector<std::string> near_matches(std::string_view word, const std::vector<std::string>& known);

}  // namespace kz
