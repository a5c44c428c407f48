// SPDX-License-Identifier: GPL-2.0-or-later
// What a run says: which tests were not clean, and the class that its evidence leads to. Reads a journal,
// nothing else.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tools/journal/reader.h"
#include "tools/kangzao/gauntlet/result.h"
#include "tools/triage/classify.h"

namespace kz::gauntlet {

struct Alarm {
  std::string test;
  Verdict verdict{};
  std::string reason;
  std::string detector;  // "our check (march.mismatch)", "KASAN", "kernel log", "runner (timeout)"
  double seconds = 0;    // from the start of the run to the verdict
};

struct Judgement {
  std::vector<Alarm> alarms;  // fail, warn, crash, timeout, device-lost, in order
  std::vector<std::string> blocked;
  size_t passed = 0;
  triage::Diagnosis diagnosis;  // of all evidence
};

// Whose merit a line of the kernel log is: "KASAN", "KCSAN", "UBSAN", "lockdep", "kmemleak", "DMA-API", "hung
// task", "DEBUG_ATOMIC_SLEEP", else "kernel log".
std::string_view kernel_detector(std::string_view line);

// Tests in `ignored` give no alarm and no evidence.
Judgement judge(const Journal& journal, const std::set<std::string>& ignored = {});

// A run without a fault. What is wrong with it are its alarms, blocked tests among them; silence proves
// something only where the tests ran. `broken_off`: why the run did not come to its end; empty: it did.
CleanRun clean_run(const Judgement& said, double seconds, int exit_status, const std::string& broken_off);

}  // namespace kz::gauntlet
