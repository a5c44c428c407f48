// SPDX-License-Identifier: GPL-2.0-or-later
// What a kernel's boots left in its folder, read from outside; and the matrix made of it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/report/run_summary.h"

namespace kz::lab {

// boot-N/state, as guest-run.sh writes it: steps in order.
struct Step {
  std::string name;
  double begin = 0, end = -1;  // seconds of the guest's uptime; end < 0: it did not end
  int status = -1;
};
std::vector<Step> read_steps(const std::string& directory);

// Empty where there is no such file.
std::string content_of(const std::string& file);

// Reports of the kernel about itself in boot-N/kernel.log and serial.log (BUG, oops, KASAN, lockdep, DMA-API,
// stalls ...), at most `most`, without the lines that a test expected, and last a taint that tells of one.
std::vector<std::string> kernel_reports(const std::string& directory,
                                        const std::set<std::string>& expected = {}, size_t most = 20);
// boot-N/kernel.log since a step began, in the form of dmesg.
std::string log_since(const std::string& directory, const std::string& step);
// Why boot-N/kernel.log does not tell everything; empty: it does, or the boot broke before its end.
std::string log_gap(const std::string& directory);
// "Kernel panic - not syncing: ..." of the serial log; empty: none.
std::string panic_line(const std::string& directory);

// Test ids of a lab run are KERNEL.GROUP.TEST, and KERNEL.STEP for what the lab does itself.
struct MatrixCell {
  std::map<Verdict, int> counts;
  std::string text() const;  // "ok 12", "FAIL 1/12", "skip", ...
};
struct KernelColumn {
  std::string name, release;
  double first_test_s = -1;  // from QEMU's start
};
// Kernels side by side, a line a group: first what the lab does itself, in its order, then the tests' groups.
std::string matrix(const RunSummary& run, const std::vector<KernelColumn>& kernels,
                   const std::vector<std::string>& steps);
nlohmann::json matrix_json(const RunSummary& run, const std::vector<KernelColumn>& kernels);

}  // namespace kz::lab
