// SPDX-License-Identifier: GPL-2.0-or-later
// A private software TPU: a child process that ends with its owner.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "shim/base/units.h"

namespace kz {

struct SoftTpuSpec {
  std::map<std::string, std::string>
      options; // of the softtpu: URI: hbm, irq, ecc, service-time, geometry,
               // seed, queues, ...
  std::string directory; // for sockets and log; empty: a new temporary folder,
                         // removed at the end
  std::vector<std::string> extra; // further command line arguments
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
};

class SoftTpuProcess {
public:
  // Starts it and waits until it takes clients. Throws Error(usage) for an
  // unknown option, Error(not_found) where the program is not found, Error(io)
  // with its last line when it ends at once.
  explicit SoftTpuProcess(const SoftTpuSpec &spec);
  ~SoftTpuProcess();
  SoftTpuProcess(const SoftTpuProcess &) = delete;
  SoftTpuProcess &operator=(const SoftTpuProcess &) = delete;

  const std::string &socket() const { return socket_; }
  const std::string &control() const { return control_; }
  pid_t pid() const { return pid_; }
  bool running();

private:
  void wait_ready(int out, Deadline deadline);
  void stop();

  std::string directory_, socket_, control_;
  bool own_directory_ = false;
  pid_t pid_ = -1;
};

// The softtpu program: $KANGZAO_BIN_DIR, beside this program, or on PATH.
// Throws Error(not_found).
std::string find_softtpu();

} // namespace kz
