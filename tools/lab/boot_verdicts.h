// SPDX-License-Identifier: GPL-2.0-or-later
// What one boot says about the lab's own steps, read from what it left on the host.
#pragma once

#include <string>
#include <vector>

#include "tools/journal/verdict.h"
#include "tools/lab/results.h"

namespace kz::lab {

// How a boot came to its end.
struct BootEnd {
  enum class How {
    off,          // the guest powered itself off
    interrupted,  // we were told to stop
    died,         // it panicked or restarted itself
    late,         // a deadline passed
    qemu_gone,    // QEMU ended by itself; that says nothing of the kernel
  };
  How how = How::off;
  std::string text = {};
  bool broken() const { return how != How::off && how != How::interrupted; }
};

// The run inside the guest, by its own journal in `directory`.
struct GuestRun {
  bool begun = false;     // it has its start record: `kangzao resume` can go on with it
  bool ended = false;     // its last record is the end of the run
  std::string test = {};  // the test that is left running
};
GuestRun read_guest_run(const std::string& directory);

// Can the next boot, named `boot`, go on with FOLDER/run? One that never began is moved aside, to
// FOLDER/run-before-BOOT, so that the boot starts a new one.
bool take_up_run(const std::string& folder, const std::string& boot);

// We took the guest away from its run: the test that was running runs again, when the run goes on.
void mark_interrupted(const std::string& directory);

struct StepVerdict {
  std::string step;
  Verdict verdict;
  std::string reason = {};
  double seconds = 0;
};
// `directory`: of the boot. A boot that broke always gets one verdict that is no pass, except where a test
// was running, which gets its own: the step that was open, else "poweroff", the way to an orderly end.
std::vector<StepVerdict> judge_steps(const std::string& directory, const BootEnd& end, const GuestRun& run);

// The test that a broken boot took down; empty: none was running.
std::string broken_test(const std::vector<Step>& reached, const BootEnd& end, const GuestRun& run);

}  // namespace kz::lab
