// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/script.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shim/base/error.h"
#include "tools/softtpu/control.h"

namespace kz::softtpu {

namespace {

ScriptStep parse_step(std::string_view line, const std::string& where) {
  auto refuse = [&](const std::string& detail) { throw Error({Errc::usage, "read", where, detail, {}}); };
  auto step = parse_json_line(line, where);
  if (!step.is_object() || step.size() != 2 || !step.contains("at_ms") || !step.contains("do"))
    refuse("wants {\"at_ms\": N, \"do\": {...}}");
  if (!step["at_ms"].is_number_unsigned() || step["at_ms"].get<uint64_t>() > 1'000'000'000)
    refuse("at_ms wants a whole number of milliseconds up to 1e9");
  try {
    Control::check(step["do"]);
  } catch (const Error& e) {
    refuse(e.what());
  }
  return {std::chrono::milliseconds(step["at_ms"].get<int64_t>()), step["do"], 0};
}

}  // namespace

std::vector<ScriptStep> parse_script(std::string_view text, const std::string& name) {
  std::vector<ScriptStep> steps;
  for (int number = 1; !text.empty(); ++number) {
    auto end = text.find('\n');
    auto line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    auto first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line[first] == '#') continue;
    steps.push_back(parse_step(line, fmt::format("{}:{}", name, number)));
    steps.back().line = number;
  }
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.at < b.at; });
  return steps;
}

std::vector<ScriptStep> load_script(const std::string& path) {
  constexpr std::streamsize most = 16 << 20;
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) throw_errno("read script", path, EISDIR);
  std::ifstream in(path);
  if (!in) throw_errno("read script", path, errno != 0 ? errno : ENOENT);
  std::string text(most + 1, '\0');  // a device node has no end
  in.read(text.data(), most + 1);
  if (in.bad()) throw_errno("read script", path, EIO);
  if (in.gcount() > most) throw_errno("read script", path, EFBIG);
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_script(text, path);
}

const ScriptStep* ScriptPlayer::due(Clock::time_point now) {
  if (!started_ || next_ == steps_.size() || now - *started_ < steps_[next_].at) return nullptr;
  return &steps_[next_++];
}

}  // namespace kz::softtpu
