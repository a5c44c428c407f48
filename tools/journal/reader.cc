// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/journal/reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace kz {

Journal parse_journal(std::string_view text) {
  Journal journal;
  size_t number = 0;
  while (!text.empty()) {
    ++number;
    auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (end == std::string_view::npos) {
      journal.torn = true;
      break;
    }
    text.remove_prefix(end + 1);
    if (line.empty()) continue;
    if (line.size() > max_journal_line) {
      journal.problems.push_back({number, fmt::format("{} bytes in one line", line.size())});
      continue;
    }
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("type") || !record["type"].is_string())
      journal.problems.push_back({number, record.is_discarded() ? "not JSON" : "not a record"});
    else
      journal.records.push_back(std::move(record));
  }
  return journal;
}

Journal read_journal(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  std::string file = fs::is_directory(path, ec) ? path + "/journal.jsonl" : path;
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("read journal {}: {}", file, std::strerror(errno)));
  std::ostringstream text;
  text << in.rdbuf();
  Journal journal = parse_journal(text.view());
  if (journal.records.empty())
    throw std::runtime_error(fmt::format("read journal {}: it holds no whole record", file));
  return journal;
}

std::string text_of(const nlohmann::json& record, const char* key, const std::string& fallback) {
  auto it = record.find(key);
  return it != record.end() && it->is_string() ? it->get<std::string>() : fallback;
}

double number_of(const nlohmann::json& record, const char* key, double fallback) {
  auto it = record.find(key);
  return it != record.end() && it->is_number() ? it->get<double>() : fallback;
}

}  // namespace kz
