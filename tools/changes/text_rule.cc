// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/changes/text_rule.h"

#include <algorithm>
#include <unordered_map>

#include "tools/changes/words.h"

namespace kz::changes {
namespace {

constexpr size_t most_hits = 200, most_looks = 100000;

// The longest fixed part of a pattern: what a text is searched for.
std::string_view anchor(std::string_view pattern) {
  std::string_view best;
  size_t from = 0;
  for (size_t at; from <= pattern.size(); from = at + 2) {
    at = pattern.find("{}", from);
    std::string_view part = pattern.substr(from, at - from);
    if (part.size() > best.size()) best = part;
    if (at == std::string_view::npos) break;
  }
  return best;
}

std::string filled(std::string_view text, const std::vector<std::string>& parts) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' && i + 2 < text.size() && text[i + 2] == '}' && text[i + 1] >= '0' &&
        text[i + 1] <= '9') {
      size_t n = static_cast<size_t>(text[i + 1] - '0');
      if (n < parts.size()) out += parts[n];
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// A name in front of a pattern's first fixed text: the last word there, without the clock of the kernel's
// log.
std::string last_word(std::string_view text) {
  text = trimmed(text);
  size_t blank = text.find_last_of(" \t]");
  return std::string(blank == std::string_view::npos ? text : text.substr(blank + 1));
}

}  // namespace

bool match_pattern(std::string_view line, std::string_view pattern, std::vector<std::string>& parts) {
  parts.clear();
  bool leading = pattern.starts_with("{}");
  size_t at = 0, from = leading ? 2 : 0;
  for (bool first = true;; first = false) {
    size_t hole = pattern.find("{}", from);
    std::string_view fixed = pattern.substr(from, hole - from);
    if (fixed.empty()) {  // a {} at the end: the rest of the line
      parts.push_back(cut_to(trimmed(line.substr(at)), 300));
      return true;
    }
    size_t hit = line.find(fixed, at);
    if (hit == std::string_view::npos) return false;
    if (!first)
      parts.push_back(cut_to(line.substr(at, hit - at), 300));
    else if (leading)
      parts.push_back(cut_to(last_word(line.substr(0, hit)), 300));
    at = hit + fixed.size();
    if (hole == std::string_view::npos) return true;
    from = hole + 2;
  }
}

std::vector<TextHit> find_rules(std::string_view text, std::span<const TextRule> rules) {
  std::vector<TextHit> out;
  for (const TextRule& rule : rules) {
    std::unordered_map<std::string, size_t> seen;
    std::string_view look_for = anchor(rule.pattern);
    size_t looks = 0;
    for (size_t at = 0; looks < most_looks && (at = find_from(text, look_for, at)) != std::string_view::npos;
         ++looks) {
      std::string_view raw = line_at(text, at);
      size_t line_start = static_cast<size_t>(raw.data() - text.data());
      std::string line = plain(raw.substr(0, 4000));
      at = std::max(at + look_for.size(), line_start + raw.size());
      TextHit hit;
      if (!match_pattern(line, rule.pattern, hit.parts)) continue;
      std::string key;
      for (const auto& p : hit.parts) key += p + "\n";
      auto known = seen.find(key);
      if (known != seen.end()) {
        ++out[known->second].count;
        continue;
      }
      if (seen.size() >= most_hits) continue;
      hit.rule = &rule;
      hit.line = cut_to(trimmed(line), 400);
      hit.at = line_start;
      seen.emplace(std::move(key), out.size());
      out.push_back(std::move(hit));
    }
  }
  std::ranges::stable_sort(out, {}, &TextHit::at);
  return out;
}

Finding finding_of(const TextHit& hit) {
  Finding f;
  f.name = hit.rule->name;
  f.what = filled(hit.rule->what, hit.parts);
  f.cause = filled(hit.rule->cause, hit.parts);
  f.cure = filled(hit.rule->cure, hit.parts);
  f.confidence = hit.rule->confidence;
  f.harmless = hit.rule->harmless;
  auto part = [&](int n) {
    return n >= 0 && static_cast<size_t>(n) < hit.parts.size() ? hit.parts[n] : std::string{};
  };
  f.symbol = part(hit.rule->symbol);
  f.file = part(hit.rule->file);
  f.evidence = hit.line;
  f.count = hit.count;
  return f;
}

}  // namespace kz::changes
