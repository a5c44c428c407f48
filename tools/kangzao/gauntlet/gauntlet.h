// SPDX-License-Identifier: GPL-2.0-or-later
// The gauntlet: plants each fault in turn in a fresh software TPU, runs tests until one catches it, and keeps
// the books.
#pragma once

#include <functional>
#include <set>

#include "tools/kangzao/gauntlet/plan.h"
#include "tools/kangzao/gauntlet/result.h"
#include "tools/kangzao/gauntlet/run_folders.h"
#include "tools/kangzao/gauntlet/state_file.h"

namespace kz::gauntlet {

struct GauntletOptions {
  std::vector<std::string> rows;   // globs
  std::vector<std::string> tests;  // globs; empty: all of the profile
  unsigned clean = 1;              // clean runs
  bool full = false;               // all tests, not only until the first alarm
  std::optional<uint64_t> vary;
  std::string profile = "quick";
  std::string hbm = "128M";
  uint64_t seed = 1;  // of the tests
  bool resume = false;
  std::string state;  // file of finished rows
  std::string keep;   // folder for the runs' journals; empty: removed
};

class Gauntlet {
 public:
  // `say`: one line of progress. Throws Error(usage) for globs that name nothing.
  Gauntlet(GauntletOptions options, std::function<void(const std::string&)> say);
  // Rows, then clean runs. `stop` is asked all the time; what is whole by then is returned.
  GauntletResult run(const std::function<bool()>& stop);

 private:
  RowResult run_row(const Planting& planting);
  CleanRun run_clean(unsigned n);
  // Is the test clean on a sound device of this kind, alone? Asked once a kind.
  bool clean_alone(const std::string& test, const std::map<std::string, std::string>& device);

  GauntletOptions options_;
  std::function<void(const std::string&)> say_;
  std::function<bool()> stop_;
  std::vector<std::string> tests_;
  std::string build_;
  std::optional<StateFile> state_;
  std::optional<RunFolders> folders_;
  std::map<std::string, bool> confirmed_;
  Finished done_;
};

// Stands for the programs that are measured: changes with every one of them.
std::string build_fingerprint(const std::string& directory);

}  // namespace kz::gauntlet
