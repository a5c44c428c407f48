// SPDX-License-Identifier: GPL-2.0-or-later
// The books of many workers, added up.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shim/load/ledger.h"

namespace kz::load {

struct Sum {
  std::array<OpAccount, kOps> ops{};
  OpAccount all{};  // latency: without checks
  std::array<uint64_t, kStatuses> failed_by{};
  std::array<uint64_t, kCancels> cancelled_by{};
  uint64_t late = 0, late_max_ns = 0, backlog_max = 0, not_started = 0, ring_full = 0, queue_faults = 0;
  uint64_t threads = 0, broke_off = 0, device_lost = 0;
  double seconds = 0;                 // from the start to the end of the last worker
  std::vector<std::string> errors;    // why workers did not start or broke off, each once
  std::vector<std::string> findings;  // the first wrong result of each worker, at most 8

  uint64_t unbalanced = 0;  // accounts of a worker's operation that do not balance

  // sent = completed + failed + cancelled + lost, for every worker and operation: one too many and one too
  // few do not make up for each other.
  bool balanced() const { return unbalanced == 0; }
  bool clean() const;  // balanced, all that was due was sent, and all that was sent came back right
};

// Of the workers that `which` says.
std::unique_ptr<Sum> add_up(const Ledger& ledger, const std::function<bool(const WorkerId&)>& which);
std::unique_ptr<Sum> add_up(const Ledger& ledger);

}  // namespace kz::load
