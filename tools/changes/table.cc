// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/changes/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "tools/changes/words.h"

namespace kz::changes {
namespace {

constexpr std::string_view change_kinds[] = {"gone",   "renamed", "signature", "return", "const",    "member",
                                             "header", "export",  "namespace", "make",   "behaviour"};

struct Field {
  std::string_view name;
  std::string Change::*at;
};
constexpr Field fields[] = {{"symbol", &Change::symbol},       {"kind", &Change::kind},
                            {"since", &Change::since},         {"not-before", &Change::not_before},
                            {"old-since", &Change::old_since}, {"new-since", &Change::new_since},
                            {"backport", &Change::backport},   {"before", &Change::before},
                            {"after", &Change::after},         {"cure", &Change::cure},
                            {"source", &Change::source},       {"include", &Change::include},
                            {"old", &Change::old_code},        {"new", &Change::new_code},
                            {"verified", &Change::verified}};

std::vector<Words> parse_words(std::string_view text) {
  std::vector<Words> out;
  if (trimmed(text) == "-") return out;  // no message names it
  for (std::string_view one : split(text, '|')) {
    Words words;
    for (std::string_view w : split(one, ' '))
      if (!w.empty()) words.emplace_back(w);
    if (!words.empty()) out.push_back(std::move(words));
  }
  return out;
}

void set_field(Change& row, std::string_view key, std::string_view value) {
  for (const Field& f : fields) {
    if (f.name != key) continue;
    row.*(f.at) += value;
    return;
  }
  if (key == "words")
    row.words = parse_words(value);
  else if (key == "new-words")
    row.new_words = parse_words(value);
  else if (key == "modpost")
    row.unexported = value == "yes";
  else
    throw std::logic_error(fmt::format("kernel changes: {}: no field '{}'", row.symbol, key));
}

void finish_row(Change& row, bool words_given) {
  auto bad = [&](std::string_view why) {
    throw std::logic_error(
        fmt::format("kernel changes: {}: {}", row.symbol.empty() ? row.before : row.symbol, why));
  };
  for (std::string Change::*need : {&Change::symbol, &Change::kind, &Change::since, &Change::before,
                                    &Change::after, &Change::cure, &Change::source})
    if ((row.*need).empty()) bad("symbol, kind, since, before, after, cure and source are needed");
  if (std::ranges::find(change_kinds, row.kind) == std::end(change_kinds)) bad("unknown kind " + row.kind);
  for (const std::string* r : {&row.since, &row.not_before, &row.old_since, &row.new_since, &row.backport})
    if (!r->empty() && series_of(*r) == 0) bad("not a release: " + *r);
  if (row.verified != "" && row.verified != "both" && row.verified != "after")
    bad("verified is both or after");
  if (row.new_since.empty()) row.new_since = row.since;
  if (words_given) return;
  size_t dot = row.kind == "header" ? std::string::npos : row.symbol.find('.');
  row.words = {dot == std::string::npos ? Words{row.symbol}
                                        : Words{row.symbol.substr(dot + 1), row.symbol.substr(0, dot)}};
}

}  // namespace

std::span<const std::string_view> kinds() { return change_kinds; }

unsigned series_of(std::string_view release) {
  unsigned major = 0, minor = 0;
  const char* end = release.data() + release.size();
  auto a = std::from_chars(release.data(), end, major);
  if (a.ec != std::errc{} || a.ptr == end || *a.ptr != '.') return 0;
  auto b = std::from_chars(a.ptr + 1, end, minor);
  if (b.ec != std::errc{} || major == 0 || major > 99 || minor > 999) return 0;
  return major * 1000 + minor;
}

// A row is lines "key: value" up to an empty line; a line that starts with a blank goes on with the value
// before.
std::vector<Change> parse_table(std::string_view text) {
  std::vector<Change> rows;
  bool open = false, words_given = false;
  std::string key;
  auto close = [&] {
    if (open) finish_row(rows.back(), words_given);
    open = words_given = false;
  };
  for (std::string_view line : split(text, '\n')) {
    if (line.starts_with("#")) continue;
    if (trimmed(line).empty()) {
      close();
      continue;
    }
    if (line[0] == ' ' || line[0] == '\t') {
      if (!open || key == "words")
        throw std::logic_error(fmt::format("kernel changes: nothing to go on with: {}", line));
      set_field(rows.back(), key, "\n" + std::string(trimmed(line)));
      continue;
    }
    size_t colon = line.find(':');
    if (colon == std::string_view::npos)
      throw std::logic_error(fmt::format("kernel changes: no colon in: {}", line));
    if (!open) rows.emplace_back();
    open = true;
    key = line.substr(0, colon);
    words_given |= key == "words";
    set_field(rows.back(), key, trimmed(line.substr(colon + 1)));
  }
  close();
  return rows;
}

std::span<const Change> table() {
  static const std::vector<Change> rows = [] {
    std::vector<Change> all;
    for (std::string_view part : table_parts())
      for (Change& row : parse_table(part)) all.push_back(std::move(row));
    return all;
  }();
  return rows;
}

namespace {

// 0: these words do not account for the message.
int score_words(const Words& words, const std::vector<std::string_view>& subjects, std::string_view message,
                std::string_view context) {
  int score = 1;
  for (size_t i = 0; i < words.size(); ++i) {
    bool named = std::ranges::find(subjects, words[i]) != subjects.end();
    if (i == 0 && !subjects.empty() && !named) return 0;
    if (named || has_word(message, words[i]))
      score += 3;
    else if (has_word(context, words[i]))
      score += 1;
    else
      return 0;
  }
  return score;
}

// A header row is about names that are not there, not about how they are used.
bool speaks_of_use(std::string_view message) {
  return message.find("arguments to function") != std::string_view::npos ||
         message.find("no member named") != std::string_view::npos;
}

// One name in two forms: which one the source has follows from the kernel that refuses it.
bool same_name(const Change& row) {
  return row.kind == "signature" || row.kind == "const" || row.kind == "return";
}

}  // namespace

Match find_change(const std::vector<std::string_view>& subjects, std::string_view message,
                  std::string_view context, unsigned release) {
  Match best;
  unsigned best_since = 0;
  bool use = speaks_of_use(message);
  auto consider = [&](const Change& row, const Words& words, bool newer) {
    if (use && row.kind == "header") return;
    int score = score_words(words, subjects, message, context);
    if (score == 0) return;
    if (!subjects.empty() && subjects[0] == words[0]) ++score;
    bool old_refused = release == 0 || release >= series_of(row.since);
    bool new_unknown = release == 0 || release < series_of(row.new_since);
    if (!newer && !old_refused && same_name(row)) newer = true;
    score = score * 4 + ((newer ? new_unknown : old_refused) ? 2 : 0) + (newer ? 0 : 1);
    unsigned since = series_of(row.since);
    if (score < best.score || (score == best.score && since <= best_since)) return;
    best = {&row, newer, score};
    best_since = since;
  };
  for (const Change& row : table()) {
    for (const Words& words : row.words) consider(row, words, false);
    for (const Words& words : row.new_words) consider(row, words, true);
  }
  return best;
}

namespace {

// What was compiled here says where a change lies only where it was on both sides: not in 6.1, and
// before 6.12.
std::string why_older(const Change& row, unsigned release) {
  constexpr std::string_view distributor = "its distributor took the change over";
  bool compiled = row.verified == "both";
  if (!row.backport.empty() || (compiled && release <= series_of("6.1"))) return std::string(distributor);
  if (compiled && series_of(row.since) <= series_of("6.12"))
    return fmt::format("{}, or it came between 6.2 and {}", distributor, row.since);
  return fmt::format("{}, or it came before {}", distributor, row.since);
}

}  // namespace

Finding finding_of(const Match& match, std::string_view symbol, unsigned release) {
  const Change& row = *match.change;
  Finding f;
  f.name = row.symbol;
  f.symbol = symbol.empty() ? row.symbol : std::string(symbol);
  f.change = &row;
  unsigned since = series_of(row.since);
  std::string when =
      row.not_before.empty() ? row.since : fmt::format("a release from {} to {}", row.not_before, row.since);
  if (match.newer_form)
    f.cause = fmt::format("the source is for Linux {} or newer; before: {}", row.new_since, row.before);
  else
    f.cause = fmt::format("changed in Linux {}: before: {}; after: {}", when, row.before, row.after);
  f.cure = row.cure;
  bool fits = match.newer_form ? release < series_of(row.new_since) : release >= since;
  f.confidence = release == 0 || fits ? Confidence::high : Confidence::medium;
  if (release != 0 && !fits && !match.newer_form)
    f.cause += "; this kernel calls itself older: " + why_older(row, release);
  return f;
}

}  // namespace kz::changes
