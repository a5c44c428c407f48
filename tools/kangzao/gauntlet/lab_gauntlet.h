// SPDX-License-Identifier: GPL-2.0-or-later
// The gauntlet of the kernel driver: each bug of shim/kmod/bugs.txt is built into the driver, which a lab
// guest of its own then loads and tests. A stock kernel first; what it does not show, a debug kernel may.
#pragma once

#include "tools/kangzao/gauntlet/driver_bugs.h"
#include "tools/kangzao/gauntlet/gauntlet.h"
#include "tools/kangzao/gauntlet/judge.h"

namespace kz::gauntlet {

class LabGauntlet {
 public:
  // `kernels`: roles. A row goes to them in this order until one shows the bug, and each has its clean runs,
  // before the rows. Tests: group kmod, then the profile's, unless the options name some. `say`: one line of
  // progress. Throws Error(usage) for what does not exist.
  LabGauntlet(GauntletOptions options, std::vector<std::string> kernels,
              std::function<void(const std::string&)> say);
  // The bugs and arguments that would be planted.
  std::vector<std::pair<DriverBug, uint64_t>> plan() const;
  // Clean runs, then rows. `stop` is asked between guests. Throws Error for a host that cannot.
  GauntletResult run(const std::function<bool()>& stop);

 private:
  struct GuestRun {
    Judgement said;
    std::string unbuilt;  // the driver did not build, and why
    int exit_status = 0;
    double seconds = 0;
  };
  GuestRun run_guest(const std::string& kernel, const std::vector<std::string>& make, uint64_t seed,
                     const std::string& name, bool stop_on_fail, const std::set<std::string>& ignored);
  RowResult run_row(const DriverBug& bug, uint64_t argument);
  void run_clean(const std::string& kernel, unsigned n);

  GauntletOptions options_;
  std::vector<std::string> kernels_;
  std::function<void(const std::string&)> say_;
  std::function<bool()> stop_;
  std::vector<DriverBug> bugs_;
  std::vector<std::string> tests_;
  std::string build_;
  std::optional<StateFile> state_;
  std::optional<RunFolders> folders_;
  Finished done_;  // ignored: KERNEL.TEST that alarmed in a clean run
};

}  // namespace kz::gauntlet
