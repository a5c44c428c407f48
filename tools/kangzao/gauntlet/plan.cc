// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>

#include "shim/base/error.h"
#include "shim/base/text.h"
#include "shim/base/units.h"
#include "tools/kangzao/runner/catalog.h"

namespace kz::gauntlet {
namespace {

using softtpu::ParamSpec;
using softtpu::Row;
using softtpu::RowSpec;
using Params = std::map<std::string, double>;

double draw(const ParamSpec& p, std::mt19937_64& rng) {
  if (p.real) return std::uniform_real_distribution<double>(p.low, p.high)(rng);
  return static_cast<double>(
      std::uniform_int_distribution<int64_t>(static_cast<int64_t>(p.low), static_cast<int64_t>(p.high))(rng));
}

// Some draws are no fault at all: a bank that is swapped with itself, a cell that couples to itself.
bool is_fault(Row row, const Params& p) {
  auto same = [&](const char* a, const char* b) {
    return p.contains(a) && p.contains(b) && p.at(a) == p.at(b);
  };
  if (row == Row::M28 && same("bank", "other")) return false;
  bool same_word = p.contains("agg_words") && p.at("agg_words") == 0;
  return !(same_word && same("bit", "agg_bit"));
}

Params draw_params(const RowSpec& spec, std::mt19937_64& rng) {
  for (;;) {
    Params p;
    for (const ParamSpec& s : spec.params) p[std::string(s.name)] = draw(s, rng);
    if (is_fault(spec.row, p)) return p;
  }
}

Params own_params(const RowSpec& spec) {
  Params p;
  for (const ParamSpec& s : spec.params) p[std::string(s.name)] = s.fallback;
  return p;
}

// An address line that is to be ignored must be there.
std::string memory_for(Row row, const Params& p, const std::string& hbm) {
  if (row != Row::M10) return hbm;
  uint64_t need = uint64_t{2} << static_cast<unsigned>(p.at("bit"));
  return need > parse_bytes(hbm).value ? std::to_string(need) : hbm;
}

}  // namespace

void check_globs(const std::vector<std::string>& known, const std::vector<std::string>& globs) {
  for (const auto& g : globs) {
    if (std::ranges::any_of(known, [&](const auto& id) { return glob_match(g, id); })) continue;
    throw Error({.code = Errc::usage,
                 .operation = "select",
                 .target = fmt::format("row '{}'", g),
                 .detail = "nothing is called that",
                 .remedy = fmt::format("rows are {} to {}; near: {}", known.front(), known.back(),
                                       fmt::join(near_matches(g, known), ", "))});
  }
}

std::vector<Row> select_rows(const std::vector<std::string>& globs) {
  std::vector<std::string> known;
  for (const RowSpec& spec : softtpu::catalogue()) known.emplace_back(spec.id);
  check_globs(known, globs);
  std::vector<Row> rows;
  for (const RowSpec& spec : softtpu::catalogue())
    if (globs.empty() || std::ranges::any_of(globs, [&](const auto& g) { return glob_match(g, spec.id); }))
      rows.push_back(spec.row);
  return rows;
}

Planting plan_row(Row row, std::optional<uint64_t> vary, const std::string& hbm) {
  const RowSpec& spec = softtpu::spec(row);
  uint64_t seed = vary.value_or(1) * 1000 + static_cast<uint64_t>(row);
  std::mt19937_64 rng(seed);
  Params params = vary ? draw_params(spec, rng) : own_params(spec);
  Planting p{.row = row, .id = std::string(spec.id), .expected = std::string(spec.classes)};
  p.fault = {
      {"row", p.id}, {"seed", seed}, {"trigger", {{"kind", "now"}}}, {"params", nlohmann::json::object()}};
  for (const ParamSpec& s : spec.params) {
    double v = params.at(std::string(s.name));
    if (s.real)
      p.fault["params"][std::string(s.name)] = v;
    else
      p.fault["params"][std::string(s.name)] = static_cast<int64_t>(v);
  }
  p.device = {{"hbm", memory_for(row, params, hbm)}};
  return p;
}

}  // namespace kz::gauntlet
