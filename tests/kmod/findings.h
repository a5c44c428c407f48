// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of this folder share: their labels, and how a finding against the driver is written down.
#pragma once

#include <string>
#include <vector>

#include "tests/harness/test.h"

namespace kz::test {

// Of a test that takes the driver or its device away.
inline std::vector<std::string> takes_driver_away() { return {"destructive", "kernel", "root"}; }

// Fails the test at the caller's line; `what` is the evidence's word (tools/journal/evidence.h, "driver").
inline void wrong(const char* what, const std::string& text, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  evidence(ev::driver, {{"what", what}, {"text", text}});
  ADD_FAILURE_AT(file, line) << text;
}

}  // namespace kz::test
