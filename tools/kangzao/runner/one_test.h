// SPDX-License-Identifier: GPL-2.0-or-later
// One test in its own process, from start to verdict.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/journal/verdict.h"
#include "tools/kangzao/runner/catalog.h"
#include "tools/kangzao/runner/kernel_log.h"

namespace kz {

struct TestOutcome {
  Verdict verdict = Verdict::crash;
  std::string reason;
  nlohmann::json failures = nlohmann::json::array();
  double seconds = 0;
  std::string hang;           // where it hung, after a time-out
  std::string output;         // last part of what it printed
  std::string last_danger;    // the step it announced last
  ExpectedLog expected_log;               // what the kernel says of what it does on purpose
  unsigned long expected_taint = 0;       // the same for bits of /proc/sys/kernel/tainted
  int leftovers = 0;          // processes it left behind
  bool left_running = false;  // it hangs and may not be killed
  bool interrupted = false;   // we were told to stop
  pid_t pid = -1;
};

struct TestRun {
  const TestDeclaration& test;
  std::string uri, profile, run_dir;
  uint64_t seed = 0;
  std::map<std::string, std::string> more = {};  // further environment
  bool may_kill = true;  // SIGKILL allowed; without it a test that ignores SIGTERM is left alone
  // Every record the test hands over, already an object; `durable` ones must be on disk on return.
  std::function<void(nlohmann::json record, bool durable)> record;
  std::function<void(pid_t)> started = {};  // its process is there
  std::function<bool()> stop;               // asked whenever something happens
  pid_t device_process = -1;                // not to be taken for a leftover
  std::function<void()> tick = {};          // called about once a second
  std::function<std::string()> state = {};  // what the device says while the test hangs; bounded in time
};

// Verdict by these rules: what the test said, if it then left with exit 0; crash without a verdict, by a
// signal or with another exit status; timeout past the limit. Throws what `record` throws, after ending the
// test.
TestOutcome run_test(const TestRun& run);

}  // namespace kz
