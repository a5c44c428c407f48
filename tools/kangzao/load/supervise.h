// SPDX-License-Identifier: GPL-2.0-or-later
// Runs a plan in child processes and watches over them: this process never touches a device, so it can always
// say what became of the load, also when a child is killed or hangs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/load/ledger.h"

namespace kz {

struct LoadRequest {
  load::Plan plan;
  // What the children must do to the plan's text as well, to come to the same plan.
  std::vector<std::string> devices;
  std::optional<std::string> time;
  std::optional<uint64_t> seed;

  // Applies them. Throws Error(usage).
  void apply();
};

struct LoadOutcome {
  std::unique_ptr<load::Ledger> ledger;
  bool interrupted = false;
  std::vector<std::string> troubles;  // of processes: killed, hung; one line each
  int exit_code() const;
};

// `tick` is called about once a second with the seconds since the load began.
LoadOutcome supervise(const LoadRequest& request,
                      const std::function<void(const load::Ledger&, double)>& tick);

// The child: `fds` of the ledger and of the profile's text.
int load_child(int ledger_fd, int text_fd, const std::string& source, LoadRequest request, unsigned process);

}  // namespace kz
