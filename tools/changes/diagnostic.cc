// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/changes/diagnostic.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "tools/changes/words.h"

namespace kz::changes {
namespace {

constexpr size_t most_context = 12000, most_context_lines = 60;

struct Head {
  std::string_view file, message;
  unsigned line = 0;
  bool error = false, note = false, valid = false;
};

// "file:12:5: error: text", "file:12: error: text".
Head read_head(std::string_view line) {
  Head h;
  struct Mark {
    std::string_view text;
    bool error, note;
  };
  constexpr Mark marks[] = {{": fatal error: ", true, false},
                            {": error: ", true, false},
                            {": warning: ", false, false},
                            {": note: ", false, true}};
  for (const Mark& m : marks) {
    size_t at = line.find(m.text);
    if (at == std::string_view::npos) continue;
    std::string_view place = line.substr(0, at);
    for (int i = 0; i < 2; ++i) {  // column, line
      size_t colon = place.rfind(':');
      if (colon == std::string_view::npos) break;
      unsigned n = 0;
      std::string_view digits = place.substr(colon + 1);
      auto r = std::from_chars(digits.data(), digits.data() + digits.size(), n);
      if (r.ec != std::errc{} || r.ptr != digits.data() + digits.size()) break;
      h.line = n;
      place = place.substr(0, colon);
    }
    if (h.line == 0 || place.empty() || place.find(' ') != std::string_view::npos) continue;
    h.file = place;
    h.message = line.substr(at + m.text.size());
    h.error = m.error;
    h.note = m.note;
    h.valid = true;
    return h;
  }
  return h;
}

bool in_kernel_headers(std::string_view file) {
  return file.find("/linux-headers-") != std::string_view::npos ||
         file.find("/include/linux/") != std::string_view::npos ||
         file.find("/include/vdso/") != std::string_view::npos || file.starts_with("./include/") ||
         file.starts_with("include/");
}

std::vector<std::string_view> quoted_in(std::string_view message) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < message.size();) {
    size_t from = message.find_first_of("'\"`", at);
    if (from == std::string_view::npos) break;
    size_t to = message.find(message[from] == '"' ? '"' : '\'', from + 1);
    if (to == std::string_view::npos) break;
    out.push_back(message.substr(from + 1, to - from - 1));
    at = to + 1;
  }
  return out;
}

std::string_view bare(std::string_view name) {  // "struct kz" -> "kz", "const struct kz *" stays a type
  for (std::string_view tag : {"const ", "struct ", "union ", "enum "})
    if (name.starts_with(tag)) name.remove_prefix(tag.size());
  return name;
}

// "note: in expansion of macro 'X'", "note: 'X' declared here", "note: macro 'X' defined here".
void names_in_notes(std::string_view context, std::string_view before, std::string_view after,
                    std::vector<std::string_view>& out) {
  for (size_t at = 0; (at = context.find(before, at)) != std::string_view::npos;) {
    at += before.size();
    size_t end = context.find('\'', at);
    if (end == std::string_view::npos) return;
    if (context.substr(end + 1).starts_with(after)) out.push_back(context.substr(at, end - at));
    at = end + 1;
  }
}

// "MODULE_IMPORT_NS(DMA_BUF);" with DMA_BUF not known: the macro may be what changed.
void macro_around(std::string_view context, std::string_view name, std::vector<std::string_view>& out) {
  for (size_t at = 0; (at = context.find(name, at)) != std::string_view::npos; ++at) {
    if (at == 0 || context[at - 1] != '(') continue;
    std::string_view before = context.substr(0, at - 1);
    size_t from = before.find_last_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    std::string_view macro = before.substr(from == std::string_view::npos ? 0 : from + 1);
    if (macro.size() > 3) out.push_back(macro);
  }
}

// The lines after the first that belong to a message.
std::string read_context(std::string_view log, size_t from) {
  std::string out;
  for (size_t n = 0; n < most_context_lines && from < log.size() && out.size() < most_context; ++n) {
    size_t end = log.find('\n', from);
    std::string_view raw = log.substr(from, std::min(end - from, size_t{1000}));
    std::string line = plain(raw);
    Head h = read_head(line);
    if ((h.valid && !h.note) || line.starts_with("make") || line.starts_with("  CC ") ||
        line.starts_with("cc1:"))
      break;
    out += line + "\n";
    if (end == std::string_view::npos) break;
    from = end + 1;
  }
  return out;
}

// The driver's own line, where the compiler points into a header whose macro the driver used.
void place_in_driver(Diagnostic& d) {
  if (!in_kernel_headers(d.file)) return;
  for (std::string_view line : split(d.context, '\n')) {
    Head h = read_head(line);
    if (!h.valid || !h.note || in_kernel_headers(h.file)) continue;
    d.file = h.file;
    d.line = h.line;
    return;
  }
}

}  // namespace

std::vector<std::string_view> Diagnostic::subjects() const {
  std::string_view m = message;
  auto names = quoted_in(m);
  std::vector<std::string_view> out;
  auto has = [&](std::string_view text) { return m.find(text) != std::string_view::npos; };
  if (has(": No such file or directory") || has("file not found")) {
    out.push_back(names.empty() ? m.substr(0, m.find(':')) : names[0]);
  } else if (has("has no member named") && names.size() >= 2) {
    out = {names[1], bare(names[0])};
  } else if ((has("no member named") || has("field designator")) && names.size() >= 2) {
    out = {names[0], bare(names[1])};
  } else if (has("implicit declaration of function") || has("undeclared") || has("unknown type name") ||
             has("arguments to function '") || has("passing argument") ||
             has("incompatible type for argument") || m.starts_with("macro ")) {
    if (!names.empty()) out.push_back(names[0]);
  } else if (has("undefined type") || has("incomplete type") || has("incomplete definition")) {
    if (!names.empty()) out.push_back(bare(names[0]));
  }
  if (has("function call, expected") || has("arguments provided to function-like macro")) {
    names_in_notes(context, "note: '", " declared here", out);
    names_in_notes(context, "note: macro '", " defined here", out);
  }
  if (has("undeclared") && !out.empty()) macro_around(context, std::string(out[0]), out);
  if (!out.empty()) names_in_notes(context, "in expansion of macro '", "", out);
  if (!out.empty()) names_in_notes(context, "expanded from macro '", "", out);
  return out;
}

std::string_view Diagnostic::subject() const {
  auto all = subjects();
  return all.empty() ? std::string_view{} : all[0];
}

bool Diagnostic::consequence() const {
  for (std::string_view text :
       {"control reaches end of non-void function", "expression in static assertion is not",
        "static assertion expression is not", "returning 'int' from a function", "each undeclared identifier",
        "makes pointer from integer without a cast", "array subscript is not",
        "this is the location of the previous"})
    if (message.find(text) != std::string::npos) return true;
  return false;
}

std::vector<Diagnostic> read_diagnostics(std::string_view log, size_t most) {
  std::vector<Diagnostic> out;
  std::unordered_map<std::string, size_t> seen;  // message and file -> index
  size_t error = find_from(log, "error: ", 0), warning = find_from(log, "warning: ", 0);
  for (size_t at = 0;;) {
    if (error < at) error = find_from(log, "error: ", at);
    if (warning < at) warning = find_from(log, "warning: ", at);
    at = std::min(error, warning);
    if (at == std::string_view::npos) return out;
    std::string_view raw = line_at(log, at);
    size_t line_start = static_cast<size_t>(raw.data() - log.data());
    size_t next = line_start + raw.size();
    std::string line = plain(raw);
    Head h = read_head(line);
    at = std::max(next, at + 1);
    if (!h.valid || h.note) continue;
    std::string key = std::string(h.message) + "\n" + std::string(h.file);
    auto known = seen.find(key);
    if (known != seen.end()) {
      ++out[known->second].count;
      continue;
    }
    if (out.size() >= most) continue;
    Diagnostic d;
    d.file = h.file;
    d.line = h.line;
    d.error = h.error;
    d.message = cut_to(h.message, 2000);
    d.evidence = cut_to(line, 400);
    d.at = line_start;
    d.context = read_context(log, std::min(log.size(), next + 1));
    place_in_driver(d);
    seen.emplace(std::move(key), out.size());
    out.push_back(std::move(d));
  }
}

}  // namespace kz::changes
