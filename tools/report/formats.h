// SPDX-License-Identifier: GPL-2.0-or-later
// A run in the formats that other programs read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/report/run_summary.h"

namespace kz {

nlohmann::json to_json(const RunSummary& run);  // docs/report-schema.json
std::string to_junit(const RunSummary& run);    // the common JUnit XML form: testsuites/testsuite/testcase
std::string to_ktap(const RunSummary& run);     // kernel Documentation/dev-tools/ktap.rst, version 1

}  // namespace kz
