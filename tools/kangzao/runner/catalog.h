// SPDX-License-Identifier: GPL-2.0-or-later
// Which tests there are, and which of them a run takes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kz {

struct TestDeclaration {
  std::string id, suite, test, meaning, program;
  int level = 0;
  double limit_s = 10;
  std::vector<std::string> labels, needs, profiles;
  bool has_label(const std::string& label) const;
  nlohmann::json to_json() const;
};

// Asks every kz-test-* program in `directory` (--kz-list). Throws Error(not_found) when there is none,
// Error(io) for one that does not answer.
std::vector<TestDeclaration> load_catalog(const std::string& directory, const std::string& profile);

struct Selection {
  std::string profile = "quick";  // "all": no profile
  std::vector<std::string> filters, groups, labels, without_labels;
  std::vector<int> levels;
  std::vector<std::string> order =
      {};  // globs: tests that fit an earlier one run earlier; the rest after them
  bool whole = false;  // also tests of the kernel's side, which otherwise run only when asked for
};

// In order of `order`, level, id. Throws Error(usage) with near matches for a filter, group or label that
// names nothing.
std::vector<TestDeclaration> select_tests(const std::vector<TestDeclaration>& all,
                                          const Selection& selection);

bool glob_match(std::string_view pattern, std::string_view text);  // '*' and '?'
}  // namespace kz
