// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/text.h"

#include <algorithm>
#include <numeric>

namespace kz {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t change = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

std::vector<std::string> near_matches(std::string_view word, const std::vector<std::string>& known) {
  std::vector<std::pair<size_t, std::string>> ranked;
  for (auto& k : known) ranked.emplace_back(edit_distance(word, k), k);
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (auto& [distance, k] : ranked)
    if (out.size() < 3 && distance <= std::max<size_t>(3, word.size() / 2)) out.push_back(k);
  return out;
}

}  // namespace kz
