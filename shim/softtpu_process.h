// SPDX-License-Identifier: GPL-2.0-or-later
// A private software TPU: a child process that ends with its owner.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"

namespace kz {

struct SoftTpuSpec {
  // Of the softtpu: URI: hbm, irq, ecc, service-time, geometry, seed, queues, serial, fw-version, log,
  // script.
  std::map<std::string, std::string> options;
  // For the sockets softtpu.sock and softtpu.ctl; empty: a new temporary folder, removed at the end.
  std::string directory;
  std::vector<std::string> extra;  // further command line arguments
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  std::function<bool()> stop = {};  // asked while it starts; true: Error(timeout)
};

// The process dies when the thread that made this object ends (PR_SET_PDEATHSIG), and with this object.
class SoftTpuProcess {
 public:
  // Starts it and waits until it takes clients. Throws Error(usage) for an unknown option or a value that
  // softtpu refuses, Error(not_found) where the program is not found, Error(io) with its last line when it
  // ends at once, Error(timeout).
  explicit SoftTpuProcess(const SoftTpuSpec& spec);
  ~SoftTpuProcess();
  SoftTpuProcess(const SoftTpuProcess&) = delete;
  SoftTpuProcess& operator=(const SoftTpuProcess&) = delete;

  const std::string& socket() const { return socket_; }
  const std::string& control() const { return control_; }
  pid_t pid() const { return pid_; }  // -1 after it ended
  bool running();

 private:
  // A folder of our own, removed with everything in it; or somebody else's.
  class Folder {
   public:
    explicit Folder(std::string given);
    ~Folder();
    Folder(const Folder&) = delete;
    std::string path;

   private:
    bool own_ = false;
  };
  void start(std::vector<std::string> args);
  void wait_ready(Deadline deadline, const std::function<bool()>& stop);
  [[noreturn]] void throw_ended();
  void stop() noexcept;

  Folder folder_;
  std::string socket_, control_;
  std::string errors_;  // file that its standard error goes to; stays in a given folder where it is not empty
  Fd output_;           // its standard output
  std::string said_;
  int status_ = 0;
  pid_t pid_ = -1;
};

// The softtpu program: in $KANGZAO_BIN_DIR, beside this program, or on PATH. Throws Error(not_found).
std::string find_softtpu();

// The command line arguments of a softtpu: URI's options. Throws Error(usage) naming the nearest known one.
std::vector<std::string> softtpu_arguments(const std::map<std::string, std::string>& options);

}  // namespace kz
