// SPDX-License-Identifier: GPL-2.0-or-later
// Small things about text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kz::changes {

std::string_view trimmed(std::string_view text);
std::vector<std::string_view> split(std::string_view text, char at);
// Whether `word` stands in `text` with no letter, digit or underscore beside it.
bool has_word(std::string_view text, std::string_view word);
// Without colours of a terminal, with plain quotes in place of typographic ones, without other control
// characters.
std::string plain(std::string_view line);
// memmem: position from `from` on, npos where there is none. Fast on long texts.
size_t find_from(std::string_view text, std::string_view what, size_t from);
// The line around a position, without its end.
std::string_view line_at(std::string_view text, size_t at);
// At most `most` bytes, cut between characters of UTF-8.
std::string cut_to(std::string_view text, size_t most);
// The release of the kernel that a build log names, "" where it names none.
std::string release_in(std::string_view log);

// Line numbers of growing positions in one text.
class LineCounter {
 public:
  explicit LineCounter(std::string_view text) : text_(text) {}
  size_t line_of(size_t at);

 private:
  std::string_view text_;
  size_t at_ = 0, line_ = 1;
};

}  // namespace kz::changes
