// SPDX-License-Identifier: GPL-2.0-or-later
// The gauntlet of the kernel driver: each bug of shim/kmod/bugs.txt is built into the driver, which a lab
// guest of its own then loads and tests. A stock kernel first; what it does not show, a debug kernel may.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "tools/kangzao/gauntlet/driver_bugs.h"
#include "tools/kangzao/gauntlet/judge.h"
#include "tools/kangzao/gauntlet/result.h"
#include "tools/kangzao/gauntlet/state_file.h"

namespace kz::gauntlet {

struct LabGauntletOptions {
  std::vector<std::string> rows;     // globs
  std::vector<std::string> tests;    // globs; empty: group kmod, then the profile
  std::vector<std::string> kernels;  // roles; rows go to them in this order until one shows the bug
  unsigned clean = 1;                // clean runs on each kernel, before the rows
  bool full = false;                 // all tests, not only until the first alarm
  std::optional<uint64_t> vary;
  std::string profile = "quick";
  uint64_t seed = 1;
  bool resume = false;
  std::string state, keep;  // as in GauntletOptions
};

class LabGauntlet {
 public:
  // `say`: one line of progress. Throws Error(usage) for what does not exist.
  LabGauntlet(LabGauntletOptions options, std::function<void(const std::string&)> say);
  ~LabGauntlet();
  LabGauntlet(const LabGauntlet&) = delete;
  // The bugs and arguments that would be planted.
  std::vector<std::pair<DriverBug, uint64_t>> plan() const;
  // Clean runs, then rows. `stop` is asked between guests. Throws Error for a host that cannot.
  GauntletResult run(const std::function<bool()>& stop);

 private:
  struct GuestRun {
    Judgement said;
    std::string unbuilt;  // the driver did not build, and why
    double seconds = 0;
  };
  GuestRun run_guest(const std::string& kernel, const std::vector<std::string>& make, uint64_t seed,
                     const std::string& name, bool stop_on_fail);
  RowResult run_row(const DriverBug& bug, uint64_t argument);
  void run_clean(const std::string& kernel, unsigned n);
  void load_state();
  void make_base();

  LabGauntletOptions options_;
  std::function<void(const std::string&)> say_;
  std::function<bool()> stop_;
  std::vector<DriverBug> bugs_;
  std::vector<std::string> tests_;
  std::string build_, base_;
  std::optional<StateFile> state_;
  std::map<std::string, RowResult> done_rows_;
  std::map<std::string, std::vector<CleanRun>> clean_;  // by kernel
  std::set<std::string> ignored_;                       // KERNEL.TEST that alarmed in a clean run
  unsigned runs_ = 0;
};

}  // namespace kz::gauntlet
