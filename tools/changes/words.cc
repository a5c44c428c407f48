// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/changes/words.h"

#include <string.h>

#include <algorithm>

namespace kz::changes {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  size_t from = text.find_first_not_of(blanks);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(blanks) - from + 1);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> out;
  for (size_t from = 0;;) {
    size_t to = text.find(at, from);
    out.push_back(text.substr(from, to - from));
    if (to == std::string_view::npos) return out;
    from = to + 1;
  }
}

bool has_word(std::string_view text, std::string_view word) {
  auto part_of_name = [](unsigned char c) { return c == '_' || (c < 0x80 && isalnum(c)); };
  for (size_t at = 0; (at = find_from(text, word, at)) != std::string_view::npos; ++at) {
    bool before = at > 0 && part_of_name(static_cast<unsigned char>(text[at - 1]));
    size_t end = at + word.size();
    bool after = end < text.size() && part_of_name(static_cast<unsigned char>(text[end]));
    if (!before && !after) return true;
  }
  return false;
}

std::string plain(std::string_view line) {
  std::string out;
  out.reserve(line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    auto c = static_cast<unsigned char>(line[i]);
    if (c == 0x1b && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && !(line[i] >= '@' && line[i] <= '~')) ++i;
    } else if (c == 0xe2 && line.substr(i, 2) == "\xe2\x80" && i + 2 < line.size() &&
               (line[i + 2] == '\x98' || line[i + 2] == '\x99')) {
      out += '\'';
      i += 2;
    } else if ((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\t') {
      out += line[i];
    }
  }
  return out;
}

size_t find_from(std::string_view text, std::string_view what, size_t from) {
  if (what.empty() || from >= text.size()) return std::string_view::npos;
  const void* hit = ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

std::string_view line_at(std::string_view text, size_t at) {
  constexpr size_t longest = 8192;  // to either side: what is longer is no line of a tool
  size_t low = at > longest ? at - longest : 0;
  size_t from = text.substr(0, at).rfind('\n');
  from = from == std::string_view::npos || from + 1 < low ? low : from + 1;
  size_t to = text.substr(at, longest).find('\n');
  return text.substr(
      from, to == std::string_view::npos ? std::min(text.size(), at + longest) - from : at + to - from);
}

std::string cut_to(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return std::string(text.substr(0, most)) + "...";
}

std::string release_in(std::string_view log) {
  for (std::string_view before : {"linux-headers-", "/lib/modules/", "linux-kbuild-", "lab: kernel "}) {
    for (size_t at = 0; (at = find_from(log, before, at)) != std::string_view::npos;) {
      at += before.size();
      std::string_view rest = log.substr(at, 64);
      size_t end = rest.find_first_of("/ :'\"\r\n\t,]");
      std::string_view release = rest.substr(0, end);
      if (!release.empty() && isdigit(static_cast<unsigned char>(release[0])) &&
          release.find('.') != release.npos)
        return std::string(release);
    }
  }
  return {};
}

size_t LineCounter::line_of(size_t at) {
  if (at < at_) {
    at_ = 0;
    line_ = 1;
  }
  line_ += static_cast<size_t>(std::ranges::count(text_.substr(at_, at - at_), '\n'));
  at_ = at;
  return line_;
}

}  // namespace kz::changes
