// SPDX-License-Identifier: GPL-2.0-or-later
// The fault catalogue as data: every row that softtpu can plant, its parameters with their ranges, and the class that
// the evidence must lead to. The model uses rows and parameters; the gauntlet uses all of it; nothing that judges reads it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kz::softtpu {

enum class Row : uint8_t {
  M01, M02, M03, M04, M05, M06, M07, M08, M09, M10, M11, M12, M13, M14, M15, M16, M17, M18, M19, M20, M21, M22, M23,
  M24, M25, M26, M27, M28,
  D01, D02, D03, D04, D05, D06, D07, D08, D09, D10, D11, D12, D13, D14, D15, D16, D17, D18,
  Q01, Q02, Q03, Q04, Q05, Q06, Q07, Q08, Q09, Q10, Q11, Q12, Q13, Q14, Q15, Q16, Q17,
  C01, C02, C03, C04, C05, C06, C07, C08, C09, C10, C11, C12, C13, C14, C15,
  F01, F02, F03, F04, F05, F06, F07, F08, F09, F10, F11, F12, F13, F14, F15, F16, F17, F18, F19, F20, F21,
  count
};

struct ParamSpec {
  std::string_view name;
  double low, high;   // --vary draws from here; integers unless `real`
  double fallback;    // where the spec gives none
  bool real = false;
};

struct RowSpec {
  Row row;
  std::string_view id;       // "M01"
  std::string_view title;    // the catalogue's words
  std::string_view classes;  // accepted classes, best first: "queue_protocol" or "driver_bug|queue_protocol"
  bool before_connect;       // pages must be trapped: plant before the client connects
  std::span<const ParamSpec> params;
};

std::span<const RowSpec> catalogue();          // in order of Row, without those that need another backend
const RowSpec& spec(Row row);
std::optional<Row> parse_row(std::string_view id);

}  // namespace kz::softtpu
