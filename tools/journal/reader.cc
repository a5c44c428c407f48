// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/journal/reader.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kz {
namespace {

constexpr size_t most_problems = 1000;

bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_record_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Takes a journal in pieces of any size.
class LineReader {
 public:
  void feed(std::string_view piece) {
    for (auto end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n')) {
      keep(piece.substr(0, end));
      line();
      piece.remove_prefix(end + 1);
    }
    keep(piece);
  }

  Journal finish() {
    journal_.torn = length_ > 0;
    return std::move(journal_);
  }

 private:
  void keep(std::string_view part) {
    length_ += part.size();
    if (length_ <= max_journal_line) text_ += part;
  }

  void line() {
    ++number_;
    if (length_ > max_journal_line)
      problem(fmt::format("{} bytes in one line", length_));
    else if (length_ > 0)
      record();
    text_.clear();
    length_ = 0;
  }

  void record() {
    auto record = parse_record(text_);
    if (record.is_discarded())
      problem("not JSON");
    else if (!record.is_object() || !record.contains("type") || !record["type"].is_string())
      problem("not a record");
    else
      journal_.records.push_back(std::move(record));
  }

  void problem(std::string text) {
    if (journal_.problems.size() < most_problems) journal_.problems.push_back({number_, std::move(text)});
  }

  Journal journal_;
  std::string text_;
  size_t length_ = 0, number_ = 0;
};

}  // namespace

nlohmann::json parse_record(std::string_view text) {
  if (too_deep(text)) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, nullptr, false);
}

Journal parse_journal(std::string_view text) {
  LineReader reader;
  reader.feed(text);
  return reader.finish();
}

Journal read_journal(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  std::string file = fs::is_directory(path, ec) ? path + "/journal.jsonl" : path;
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("read journal {}: {}", file, std::strerror(errno)));
  LineReader reader;
  std::string piece(64 << 10, '\0');
  do {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    reader.feed(std::string_view(piece).substr(0, static_cast<size_t>(in.gcount())));
  } while (in);
  if (in.bad()) throw std::runtime_error(fmt::format("read journal {}: {}", file, std::strerror(errno)));
  Journal journal = reader.finish();
  if (journal.records.empty())
    throw std::runtime_error(
        fmt::format("read journal {}: it holds no whole record; that run never began, start it again", file));
  return journal;
}

std::string text_of(const nlohmann::json& record, const char* key, const std::string& fallback) {
  if (!record.is_object()) return fallback;
  auto it = record.find(key);
  return it != record.end() && it->is_string() ? it->get<std::string>() : fallback;
}

double number_of(const nlohmann::json& record, const char* key, double fallback) {
  if (!record.is_object()) return fallback;
  auto it = record.find(key);
  return it != record.end() && it->is_number() ? it->get<double>() : fallback;
}

}  // namespace kz
