// SPDX-License-Identifier: GPL-2.0-or-later
// The planting side of the gauntlet: which rows, with which parameters, in which software TPU. Nothing that
// judges sees any of it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/softtpu/catalogue.h"

namespace kz::gauntlet {

// One fault to plant and the device to plant it in.
struct Planting {
  softtpu::Row row{};
  std::string id;                             // "M01"
  std::string expected;                       // accepted classes, "a|b"
  nlohmann::json fault;                       // softtpu --fault
  std::map<std::string, std::string> device;  // options of softtpu:, e.g. {"hbm", "128M"}
};

// Throws Error(usage) with near matches for a glob that fits none of `known`.
void check_globs(const std::vector<std::string>& known, const std::vector<std::string>& globs);

// Rows that fit one of the globs ("M01", "D*"), in the catalogue's order; all for an empty list. Throws
// Error(usage) with near matches for a glob that fits none.
std::vector<softtpu::Row> select_rows(const std::vector<std::string>& globs);

// The row with the catalogue's own parameters, or with a draw from their ranges where `vary` has a seed.
// `hbm`: size of the device's memory; larger where the row needs it. The same seed gives the same plantings,
// whatever the selection.
Planting plan_row(softtpu::Row row, std::optional<uint64_t> vary, const std::string& hbm);

}  // namespace kz::gauntlet
