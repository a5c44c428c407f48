// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/driver_bugs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "shim/base/error.h"
#include "tools/kangzao/gauntlet/plan.h"
#include "tools/kangzao/runner/catalog.h"
#include "tools/triage/classify.h"

namespace kz::gauntlet {
namespace {

bool read_range(const std::string& range, const std::string& fallback, DriverBug& bug) {
  if (range == "-" && fallback == "-") return true;
  std::istringstream in(range);
  char dots[2] = {};
  return static_cast<bool>(in >> bug.first >> dots[0] >> dots[1] >> bug.last) && in.peek() == EOF &&
         dots[0] == '.' && dots[1] == '.' &&
         static_cast<bool>(std::istringstream(fallback) >> bug.fallback) && bug.first > 0 &&
         bug.first <= bug.fallback && bug.fallback <= bug.last;
}

}  // namespace

std::vector<DriverBug> parse_driver_bugs(const std::string& text) {
  std::vector<DriverBug> bugs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    DriverBug bug;
    std::string kernel, range, fallback;
    std::istringstream words(line);
    words >> bug.id >> bug.cls >> kernel >> range >> fallback >> std::ws;
    std::getline(words, bug.title);
    bug.needs_debug = kernel == "debug";
    if (!triage::parse_class(bug.cls) || (kernel != "stock" && kernel != "debug") ||
        !read_range(range, fallback, bug) || bug.title.empty())
      throw Error({Errc::usage, "read the table of driver bugs", line,
                   "wants ID CLASS stock|debug A..B|- N|- TITLE", "", 0});
    bugs.push_back(std::move(bug));
  }
  return bugs;
}

std::vector<DriverBug> select_driver_bugs(const std::vector<DriverBug>& all,
                                          const std::vector<std::string>& globs) {
  std::vector<std::string> ids;
  for (auto& b : all) ids.push_back(b.id);
  check_globs(ids, globs);
  std::vector<DriverBug> out;
  for (auto& b : all)
    if (globs.empty() || std::ranges::any_of(globs, [&](auto& glob) { return glob_match(glob, b.id); }))
      out.push_back(b);
  return out;
}

// Ranges span decades, and small values are other bugs than large ones: equally often in each decade.
uint64_t bug_argument(const DriverBug& bug, std::optional<uint64_t> vary) {
  if (!vary || bug.last == 0) return bug.fallback;
  std::seed_seq seed{static_cast<uint32_t>(*vary), static_cast<uint32_t>(*vary >> 32),
                     static_cast<uint32_t>(std::stoul(bug.id.substr(1)))};
  std::mt19937_64 rng(seed);
  if (bug.last - bug.first < 16) return std::uniform_int_distribution<uint64_t>(bug.first, bug.last)(rng);
  std::uniform_real_distribution<double> exponent(std::log(static_cast<double>(bug.first)),
                                                  std::log(static_cast<double>(bug.last)));
  return std::clamp(static_cast<uint64_t>(std::exp(exponent(rng))), bug.first, bug.last);
}

std::vector<std::string> make_words(const DriverBug& bug, uint64_t argument) {
  return {"KZ_BUGS=1", "KZ_PLANT=" + bug.id, fmt::format("KZ_PLANT_ARG={}", argument)};
}

}  // namespace kz::gauntlet
