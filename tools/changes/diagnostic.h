// SPDX-License-Identifier: GPL-2.0-or-later
// Messages of gcc and clang in a build log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kz::changes {

struct Diagnostic {
  std::string
      file;  // as the compiler printed it; the place in the driver where the message is in a kernel header
  unsigned line = 0;
  bool error = false;    // else a warning
  std::string message;   // plain text, without place and severity
  std::string context;   // the lines that belong to it: notes, code
  std::string evidence;  // the first line, plain
  size_t at = 0;         // position in the log
  size_t count = 1;      // how often the same was said

  // What the message is about: names, members and their structs, headers; macros on the way to it. Empty: it
  // names types only.
  std::vector<std::string_view> subjects() const;
  std::string_view subject() const;  // the first, or ""
  // "control reaches end of non-void function" and the like follow from what was said before.
  bool consequence() const;
};

// Every different message of a log, in order; at most `most`, the rest is dropped.
std::vector<Diagnostic> read_diagnostics(std::string_view log, size_t most = 2000);

}  // namespace kz::changes
