// SPDX-License-Identifier: GPL-2.0-or-later
// Child processes that never outlive the runner, and what can be said of one that hangs.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "shim/base/fd.h"

namespace kz {

using Environment = std::map<std::string, std::string>;

// Starts argv[0] with `extra` added to the environment, in its own process group, killed when this process dies. Descriptors in
// `keep` stay open in the child under their own numbers; `output` (may be -1: inherited) becomes its standard output and error.
// Standard input is /dev/null. Call from the thread that lives as long as the process.
pid_t spawn(const std::vector<std::string>& argv, const Environment& extra, const std::vector<int>& keep, int output);

struct Captured {
  int status = -1;  // as waitpid gives it; -1 when it had to be killed at the time limit
  bool timed_out = false;
  std::string output;
};
// Runs a program to its end, at most `limit` long (then SIGKILL), keeping up to 4 MiB of its output.
Captured run_captured(const std::vector<std::string>& argv, const Environment& extra, std::chrono::milliseconds limit);

// "exit 1", "signal 11 (Segmentation fault)"
std::string describe_status(int status);

// Where a hung process hangs: state, wait channel, system call and kernel stack of every thread, as far as readable.
std::string describe_hang(pid_t pid);

// Direct children of this process, with their command lines; reparented ones are among them (subreaper).
std::map<pid_t, std::string> children();

// This process adopts orphans of its descendants, so that it can find and end them.
void become_subreaper();

// Folder of the running program.
std::string program_directory();

}  // namespace kz
