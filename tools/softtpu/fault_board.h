// SPDX-License-Identifier: GPL-2.0-or-later
// Which faults are planted in this softtpu, and whether one of them strikes now.
//
// Model code asks at each place where a fault can act:
//   if (const Fault* f = faults.due(Row::D04)) dst += f->param("pages") * 4096;
// With nothing planted that is one relaxed load.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <random>
#include <string>
#include <vector>

#include "tools/softtpu/catalogue.h"

namespace kz::softtpu {

// {"kind": "now"}: every opportunity. {"kind": "after", "n": N}: from the N+1st opportunity on. {"kind":
// "once", "n": N}: only the N+1st. {"kind": "every", "n": N}. {"kind": "time", "ms": T}: from T ms after
// planting on.
// {"kind": "probability", "p": P}: each opportunity with probability P, drawn from the fault's seed.
struct Trigger {
  enum class Kind { now, after, once, every, time, probability } kind = Kind::now;
  uint64_t n = 0;
  std::chrono::milliseconds delay{0};
  double p = 1.0;
};

struct Fault {
  int id = 0;
  Row row{};
  Trigger trigger;
  uint64_t seed = 1;
  std::map<std::string, double> params;  // complete: defaults of the catalogue filled in
  std::chrono::steady_clock::time_point planted{};
  uint64_t opportunities = 0;
  uint64_t strikes = 0;
  // Throws std::out_of_range for a name the catalogue does not have: a model bug, not input.
  double param(const std::string& name) const { return params.at(name); }
  uint64_t uparam(const std::string& name) const { return static_cast<uint64_t>(params.at(name)); }
};

class FaultBoard {
 public:
  FaultBoard();
  ~FaultBoard();
  FaultBoard(const FaultBoard&) = delete;

  // {"row": "D04", "trigger": {...}, "seed": 7, "params": {"pages": 1}}; all but "row" optional. Returns the
  // fault's id. Throws Error(usage) for an unknown row, parameter or trigger and for values out of range;
  // Error(busy) for a row that must be planted before a client connects when `client_connected`.
  int inject(const nlohmann::json& spec, bool client_connected);
  void clear(int id);  // 0: all. Throws Error(not_found).
  nlohmann::json list() const;

  // The planted fault of this row whose trigger fires at this opportunity, else null. Thread-safe. The
  // pointer stays valid as long as the board (cleared faults are retired, not freed). A row with a parameter
  // "every" strikes once in each run of so many opportunities that pass its trigger, at a place drawn from
  // the seed.
  const Fault* due(Row row) {
    return planted_mask_[index(row) / 64].load(std::memory_order_relaxed) & bit(row) ? due_slow(row)
                                                                                     : nullptr;
  }
  // Planted and past its "time"/"after" start, without counting an opportunity: for faults that are a state.
  // The other triggers choose single opportunities and do not matter here.
  const Fault* active(Row row) const;
  bool any() const;  // something is planted
  // Planted faults of the row, whatever their trigger, in order of planting.
  std::vector<const Fault*> planted(Row row) const;
  // Called on every change of what is planted (cells are rebuilt from it), by the changing thread and without
  // a lock. Callbacks add up and stay.
  void on_change(std::function<void()> callback);

 private:
  static size_t index(Row row) { return static_cast<size_t>(row); }
  static uint64_t bit(Row row) { return uint64_t{1} << (index(row) % 64); }
  const Fault* due_slow(Row row);
  struct Planted;
  bool strikes(Planted& p);
  void publish();  // masks from planted_, with the lock held
  void notify();

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Planted>> planted_;
  std::vector<std::unique_ptr<Planted>> retired_;
  std::vector<std::function<void()>> callbacks_;
  int next_id_ = 1;
  std::atomic<uint64_t> planted_mask_[3] = {};
};

}  // namespace kz::softtpu
