// SPDX-License-Identifier: GPL-2.0-or-later
// One run of the tests against one fresh software TPU.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/journal/reader.h"

namespace kz::gauntlet {

struct RunSpec {
  std::map<std::string, std::string> device;  // options of softtpu:
  nlohmann::json fault;                       // as for softtpu --fault; null: a sound device
  std::vector<std::string> tests;             // ids, in order
  std::string profile = "quick";
  uint64_t seed = 1;
  bool stop_on_fail = true;
  std::string directory;  // of the run; must not exist
};

struct RunResult {
  std::optional<Journal> journal;
  int exit_status = -1;     // of `kangzao run`; -1: it had to be killed
  std::string unplantable;  // the software TPU refused the fault, and why
  std::string broken_off;   // the runner itself ended before its time, and how
};

// Starts `softtpu` with the fault and `kangzao run --device vfio-user:SOCKET` as processes of their own.
// Throws Error where the host fails. `stop`: whether to break off; there is no
// journal then.
RunResult run_once(const RunSpec& spec, const std::function<bool()>& stop);

}  // namespace kz::gauntlet
