// SPDX-License-Identifier: GPL-2.0-or-later
// What is said of a load: one JSON document, and a table for a person. Both are described in docs/load.md.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/kangzao/load/supervise.h"

namespace kz {

nlohmann::json load_document(const LoadRequest& request, const LoadOutcome& outcome);
// Throws nlohmann::json::exception where it is no such document.
std::string load_table(const nlohmann::json& document);
// Why the exit code is not 0, a line each.
std::vector<std::string> load_reasons(const LoadOutcome& outcome);
// The counters while it runs: {"seconds", "sent", "completed", "failed", "cancelled", "lost", "late",
// "backlog_max"}
nlohmann::json load_sample(const load::Ledger& ledger, double seconds);

}  // namespace kz
