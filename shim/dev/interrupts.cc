// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/interrupts.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

namespace kz::dev {
namespace {

// "kz0-12" of kz0: 12.
std::optional<size_t> vector_of(std::string_view handler, std::string_view kernel_name) {
  if (!handler.starts_with(kernel_name) || handler.size() < kernel_name.size() + 2 ||
      handler[kernel_name.size()] != '-')
    return std::nullopt;
  std::string_view digits = handler.substr(kernel_name.size() + 1);
  size_t vector = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), vector);
  constexpr size_t most_vectors = 2048;  // of MSI-X
  if (ec != std::errc() || end != digits.data() + digits.size() || vector >= most_vectors)
    return std::nullopt;
  return vector;
}

}  // namespace

std::vector<uint64_t> parse_interrupts(std::string_view text, std::string_view kernel_name) {
  std::vector<uint64_t> counts;
  std::istringstream lines{std::string(text)};
  std::string line, word;
  std::getline(lines, line);  // CPU0 CPU1 ...
  std::istringstream heads(line);
  size_t processors = 0;
  while (heads >> word) ++processors;
  while (std::getline(lines, line)) {
    auto space = line.find_last_of(' ');
    auto vector =
        vector_of(std::string_view(line).substr(space == std::string::npos ? 0 : space + 1), kernel_name);
    if (!vector) continue;
    std::istringstream fields(line);
    fields >> word;  // "24:"
    uint64_t sum = 0, n = 0;
    for (size_t i = 0; i < processors && fields >> n; ++i) sum += n;
    if (counts.size() <= *vector) counts.resize(*vector + 1);
    counts[*vector] += sum;
  }
  return counts;
}

std::vector<uint64_t> interrupt_counts_of(const std::string& kernel_name) {
  std::ifstream file("/proc/interrupts");
  std::stringstream text;
  text << file.rdbuf();
  return parse_interrupts(text.str(), kernel_name);
}

}  // namespace kz::dev
