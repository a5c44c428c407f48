// SPDX-License-Identifier: GPL-2.0-or-later
// A journal folded into results: one verdict a test, what was proved and what was not, and the run's exit
// code.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/journal/evidence.h"
#include "tools/journal/reader.h"
#include "tools/journal/verdict.h"

namespace kz {

struct TestResult {
  std::string id;
  int level = 0;
  Verdict verdict = Verdict::not_run;  // the worst of all repetitions
  std::string reason;
  double seconds = 0;                 // of all repetitions
  bool stood_in = false;              // the verdict is of a test that did not run
  int runs = 0;                       // verdicts, of any kind
  int passed = 0;                     // of them, the ones that can bound a failure rate
  int bad_runs = 0;                   // neither pass, warn nor skip
  std::string rerun;                  // the command line that runs just this
  std::string retries;                // "hard (3 of 3 retries failed)", "intermittent (...)"
  std::vector<std::string> failures;  // "file:line: text"
  std::vector<Evidence> evidence;
  std::vector<nlohmann::json> metrics;
};

struct RunSummary {
  std::string device, profile, seed, started;
  nlohmann::json environment;
  std::vector<TestResult> results;  // in the order of the selection
  std::map<Verdict, int> counts;
  std::vector<std::string> proved, not_proved;
  std::vector<std::string> notes;  // journal problems, leftovers, recoveries
  std::vector<int> levels;         // of the profile
  int repeat = 1;
  bool stopped_lost = false;  // the device was lost and the run stopped
  bool interrupted = false;
  bool finished = false;  // a run-end record is there

  const TestResult* find(const std::string& id) const;
};

// Never throws for content: records that make no sense are passed over.
RunSummary summarize(const Journal& journal);

// 0 nothing failed or was blocked and every level has a pass; 1 fail, warn, crash, timeout; 3 device lost;
// 125 blocked or nothing run; 130 interrupted.
int exit_code(const RunSummary& run);

// The rate of failure that `clean` clean runs of as many exclude with 95% confidence: 1 - 0.05^(1/clean).
double failure_bound(int clean);

// Bad enough to look at: fail, crash, timeout, device-lost.
bool is_failure(Verdict v);

}  // namespace kz
