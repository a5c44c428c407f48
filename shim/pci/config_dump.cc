// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/config_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "shim/base/error.h"
#include "shim/base/fd.h"

namespace kz {
namespace {

constexpr size_t kMaxFile = 64u << 20;
constexpr size_t kMaxLine = 4096;
constexpr size_t kConfigBytes = 4096;
constexpr size_t kHeaderBytes = 64;
constexpr std::string_view kRemedy = "take it with: lspci -D -xxxx > FILE (as root)";

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The "1f0" of a row "1f0: ..."; nothing where the line does not begin like a row.
std::optional<uint32_t> row_offset(std::string_view line) {
  size_t digits = 0;
  uint32_t offset = 0;
  while (digits < line.size() && digits < 8 && nibble(line[digits]) >= 0)
    offset = offset * 16 + static_cast<uint32_t>(nibble(line[digits++]));
  if (digits < 2 || digits >= line.size() || line[digits] != ':') return std::nullopt;
  // "00:1f.0" is an address, "fe80::1" a text: a row has a blank or its end after the colon
  if (digits + 1 < line.size() && line[digits + 1] != ' ') return std::nullopt;
  return offset;
}

std::optional<Bdf> title_bdf(std::string_view line) {
  std::string_view word = line.substr(0, line.find_first_of(" \t"));
  if (word.size() < 7 || word[word.size() - 2] != '.') return std::nullopt;
  try {
    return parse_bdf(word);
  } catch (const Error&) {
    return std::nullopt;
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<DumpedFunction> run() {
    while (!text_.empty()) {
      size_t end = text_.find('\n');
      std::string_view line = text_.substr(0, end);
      text_ = end == std::string_view::npos ? std::string_view() : text_.substr(end + 1);
      ++line_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      one(line);
    }
    finish();
    if (done_.empty())
      fail(line_, seen_ == 0 ? "no PCI function in it" : "functions, but no rows of configuration space");
    return std::move(done_);
  }

 private:
  [[noreturn]] void fail(unsigned line, std::string detail) {
    throw Error({Errc::bad_data, "read dump", fmt::format("{}:{}", name_, line), std::move(detail),
                 std::string(kRemedy), 0});
  }

  void one(std::string_view line) {
    if (line.size() > kMaxLine) fail(line_, fmt::format("a line of {} characters", line.size()));
    for (char c : line) {
      auto u = static_cast<unsigned char>(c);
      if ((u < 0x20 && u != '\t') || u == 0x7f) fail(line_, fmt::format("not text (character {:#04x})", u));
    }
    if (auto offset = row_offset(line)) return row(*offset, line.substr(line.find(':') + 1));
    if (auto bdf = title_bdf(line)) return title(*bdf, line);
    constexpr std::string_view kDriver = "Kernel driver in use: ";
    if (auto at = line.find(kDriver); at != std::string_view::npos && seen_ != 0)
      current_.driver = std::string(line.substr(at + kDriver.size()));
  }

  void title(const Bdf& bdf, std::string_view line) {
    finish();
    ++seen_;
    current_ = {};
    current_.bdf = bdf;
    current_.line = line_;
    size_t blank = line.find_first_of(" \t");
    if (blank != std::string_view::npos) current_.title = std::string(line.substr(blank + 1));
  }

  void row(uint32_t offset, std::string_view rest) {
    if (seen_ == 0) fail(line_, "bytes before the line that names their function");
    if (offset != current_.bytes.size())
      fail(line_, fmt::format("row {:#x} where {:#x} must follow", offset, current_.bytes.size()));
    size_t count = 0;
    while (true) {
      while (rest.starts_with(' ')) rest.remove_prefix(1);
      if (rest.empty()) break;
      int high = nibble(rest[0]);
      int low = rest.size() > 1 ? nibble(rest[1]) : -1;
      if (high < 0 || low < 0 || (rest.size() > 2 && rest[2] != ' '))
        fail(line_,
             fmt::format("'{}' is not a byte of two hexadecimal digits", rest.substr(0, rest.find(' '))));
      if (++count > 16) fail(line_, "more than 16 bytes in a row");
      if (current_.bytes.size() == kConfigBytes) fail(line_, "more than 4096 bytes of one function");
      current_.bytes.push_back(static_cast<uint8_t>(high * 16 + low));
      rest.remove_prefix(2);
    }
    if (count == 0) fail(line_, "a row without bytes");
  }

  void finish() {
    if (seen_ == 0 || current_.bytes.empty()) return;
    if (current_.bytes.size() < kHeaderBytes)
      fail(line_, fmt::format("{} ends after {} of the header's {} bytes", to_string(current_.bdf),
                              current_.bytes.size(), kHeaderBytes));
    for (const auto& other : done_)
      if (other.bdf == current_.bdf)
        fail(current_.line,
             fmt::format("{} is given twice, first in line {}", to_string(current_.bdf), other.line));
    done_.push_back(std::move(current_));
    current_ = {};
  }

  std::string_view text_;
  const std::string& name_;
  unsigned line_ = 0;
  unsigned seen_ = 0;
  DumpedFunction current_;
  std::vector<DumpedFunction> done_;
};

}  // namespace

std::vector<DumpedFunction> parse_pci_dump(std::string_view text, const std::string& name) {
  return Parser(text, name).run();
}

std::vector<DumpedFunction> read_pci_dump(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_errno("open dump", path, errno, "give a file with the output of lspci -xxxx");
  std::string text;
  std::array<char, 65536> chunk;
  while (true) {
    ssize_t n = ::read(fd.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("read dump", path, errno, std::string(kRemedy));
    if (n == 0) break;
    text.append(chunk.data(), static_cast<size_t>(n));
    if (text.size() > kMaxFile)
      throw Error({Errc::bad_data, "read dump", path, "larger than 64 MiB", std::string(kRemedy), 0});
  }
  return parse_pci_dump(text, path);
}

}  // namespace kz
