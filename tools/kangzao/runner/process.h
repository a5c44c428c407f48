// SPDX-License-Identifier: GPL-2.0-or-later
// Child processes that never outlive the runner, and what can be said of one that hangs.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"

namespace kz {

using Environment = std::map<std::string, std::string>;

// Starts argv[0] with `extra` added to the environment, in its own process group, sent `death_signal` when
// this process dies. Descriptors in `keep` stay open in the child under their own numbers; `output` (may be
// -1: inherited) becomes its standard output, and its standard error where `errors` is -1. Standard input is
// /dev/null. Call from the thread that lives as long as the process.
pid_t spawn(const std::vector<std::string>& argv, const Environment& extra, const std::vector<int>& keep,
            int output, int death_signal = SIGKILL, int errors = -1);

struct Captured {
  int status = -1;  // as waitpid gives it; -1 when it did not end in time
  bool timed_out = false;
  std::string output, errors;  // standard output, standard error
};
struct CaptureRules {
  bool may_kill = true;             // false: at the limit SIGTERM only; one that ignores it is left alone
  std::function<bool()> stop = {};  // asked every 100 ms; true ends the wait as the limit does
};
// Runs a program to its end, at most `limit` long, keeping up to 4 MiB of each of its outputs. Returns even
// when the program cannot be ended (uninterruptible wait): it is left behind then.
Captured run_captured(const std::vector<std::string>& argv, const Environment& extra,
                      std::chrono::milliseconds limit, const CaptureRules& rules = {});

// Waits for a child without ever blocking for longer. False when the deadline passed first.
bool wait_for_child(pid_t pid, int& status, Deadline deadline);

// Of what a program said, for one line of ours. Empty: it said nothing.
std::string last_line(const std::string& text);

// "exit 1", "signal 11 (Segmentation fault)"
std::string describe_status(int status);

// Has it been killed already, though it cannot be waited for yet? Its threads end one by one.
bool is_ending(pid_t pid);

// When it was started, in clock ticks since boot: with the number, this names a process for good. 0: it is
// gone, or as good as gone (zombie).
uint64_t start_ticks(pid_t pid);

// Where a hung process hangs: state, wait channel, system call and kernel stack of every thread, as far as
// readable.
std::string describe_hang(pid_t pid);

// Direct children of this process, with their names; reparented ones are among them (subreaper).
std::map<pid_t, std::string> children();

// Open descriptors and locked, pinned and resident memory of a process, as far as readable: {"fds",
// "locked_kib", "pinned_kib", "resident_kib"}.
nlohmann::json process_usage(pid_t pid);

// This process adopts orphans of its descendants, so that it can find and end them.
void become_subreaper();

// Folder of the running program.
std::string program_directory();

}  // namespace kz
