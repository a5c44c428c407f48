// SPDX-License-Identifier: GPL-2.0-or-later
// Lines that one pattern recognises: make, modpost, the module loader, insmod.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/changes/changes.h"

namespace kz::changes {

// In a pattern "{}" stands for any text without a line end, as little as needed. It must hold some fixed
// text. In what, cause and cure "{0}" is the first such text, "{1}" the second.
struct TextRule {
  std::string_view name, pattern, what, cause, cure;
  Confidence confidence = Confidence::high;
  bool harmless = false;
  int symbol = -1, file = -1;  // which {} is the symbol, and which the module; -1: none
};

struct TextHit {
  const TextRule* rule = nullptr;
  std::vector<std::string> parts;  // what the {} stood for
  std::string line;                // plain, at most 400 characters
  size_t at = 0;                   // position of the line in the text
  size_t count = 1;                // lines with the same parts
};

// Whether `line` holds `pattern`, and what its {} stand for.
bool match_pattern(std::string_view line, std::string_view pattern, std::vector<std::string>& parts);
// All different hits of all rules, in the order of the text; at most 200 a rule.
std::vector<TextHit> find_rules(std::string_view text, std::span<const TextRule> rules);
Finding finding_of(const TextHit& hit);

}  // namespace kz::changes
