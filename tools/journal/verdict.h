// SPDX-License-Identifier: GPL-2.0-or-later
// The verdicts of a test. Their meaning is part of the tool's interface and stands in docs/verdicts.md.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace kz {

enum class Verdict {
  pass,         // ran, every check held, nothing dirty around it
  fail,         // a check did not hold
  warn,         // checks held, but kernel log or device counters are dirty
  skip,         // this device or backend does not have the feature
  blocked,      // it should have run and could not: permission, tool, memory, another test's wreck
  crash,        // the test's process died by a signal or left without a verdict
  timeout,      // its time limit passed
  device_lost,  // the device was lost during it and did not come back
  not_run,      // not reached
};
inline constexpr std::array all_verdicts = {Verdict::pass,    Verdict::fail,        Verdict::warn,
                                            Verdict::skip,    Verdict::blocked,     Verdict::crash,
                                            Verdict::timeout, Verdict::device_lost, Verdict::not_run};
std::string_view to_string(Verdict v);  // "pass" ... "device-lost", "not-run"
std::optional<Verdict> parse_verdict(std::string_view text);

}  // namespace kz
