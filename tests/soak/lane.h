// SPDX-License-Identifier: GPL-2.0-or-later
// Work for one queue that never ends and is checked all the time. A driver loop calls step() on each lane in
// turn; no call waits for the device.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/harness/host_area.h"
#include "tests/harness/test.h"

namespace kz::test {

struct LaneCount {
  uint64_t sent = 0, completed = 0, bad = 0;  // commands; bad: wrong status or wrong data
};

class Lane {
 public:
  Lane(Device& device, Context& context)
      : device_(device), context_(context), queue_(open_queue(device, context)) {}
  virtual ~Lane() = default;
  // Takes what has completed, checks it, and submits the next round when the last one is over.
  void step();
  // Waits for what is outstanding and checks it.
  void drain();
  const LaneCount& count() const { return count_; }
  // Times of the commands completed since the last call, microseconds.
  std::vector<double> take_times() { return std::exchange(times_, {}); }
  virtual const char* name() const = 0;

 protected:
  virtual void submit_round() = 0;
  // All commands of the round are complete, in the order of their tickets.
  virtual void check_round(const std::vector<Completion>& done) = 0;
  void submit(const Command& command);
  void wrong(const std::string& text);

  Device& device_;
  Context& context_;
  std::unique_ptr<QueueGuard> queue_;

 private:
  void collect(const std::vector<Completion>& done);
  void end_round();

  LaneCount count_;
  std::vector<double> times_;
  std::vector<Completion> round_;
  std::vector<std::string> commands_;  // of the round
  Clock::time_point last_progress_ = Clock::now();
};

// host > HBM > HBM > host with a CRC32C on the way; every byte is compared.
std::unique_ptr<Lane> copy_lane(Device& device, Context& context, uint64_t seed);
// Scattered fills and reads of memory that is allocated and freed all the time.
std::unique_ptr<Lane> alloc_lane(Device& device, Context& context, uint64_t seed);
// f32 products of small whole numbers, and sums of their rows: exact.
std::unique_ptr<Lane> compute_lane(Device& device, Context& context, uint64_t seed);
// Time stamps behind fences: order and clock.
std::unique_ptr<Lane> clock_lane(Device& device, Context& context);

}  // namespace kz::test
