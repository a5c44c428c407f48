// SPDX-License-Identifier: GPL-2.0-or-later
// Reads journals, whole ones and those that a crash left. No content makes it throw: parse_journal() is the
// fuzzers' entry.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kz {

struct JournalProblem {
  size_t line = 0;  // from 1
  std::string text;
};

struct Journal {
  std::vector<nlohmann::json> records;   // objects with a string "type", in file order
  std::vector<JournalProblem> problems;  // lines that were passed over, the first 1000
  bool torn = false;                     // the last line has no end: dropped
};

inline constexpr size_t max_journal_line = 1 << 20;
// Objects and arrays within each other. Deeper text would exhaust the stack of whoever writes it out again.
inline constexpr int max_record_depth = 64;

// JSON from somebody who is not trusted. is_discarded() when it is no JSON or nested too deep.
nlohmann::json parse_record(std::string_view text);

Journal parse_journal(std::string_view text);

// `path`: a journal, or a run's folder; read piece by piece, a line too long is never held. Throws
// std::runtime_error naming the file when it cannot be read, or holds no record at all.
Journal read_journal(const std::string& path);

// Fields of untrusted records, with a fallback where they are missing or of another type.
std::string text_of(const nlohmann::json& record, const char* key, const std::string& fallback = {});
double number_of(const nlohmann::json& record, const char* key, double fallback = 0);

}  // namespace kz
