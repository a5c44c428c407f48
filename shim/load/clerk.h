// SPDX-License-Identifier: GPL-2.0-or-later
// The one thread that calls a Device during a load: allocates, frees, and reads telemetry, while the workers'
// threads keep their queues busy.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/error.h"
#include "shim/device.h"
#include "shim/load/job.h"

namespace kz::load {

struct ClerkAnswer {
  uint32_t slot = 0;
  Status status = Status::ok;
  std::string finding;  // why it is not ok, where there is more to say
  Clock::time_point seen;
  std::unique_ptr<HbmBlock> block;  // of alloc
  std::optional<Error> error;       // the device did not answer, or is gone
};

// Where answers for one worker arrive.
class ClerkInbox {
 public:
  void put(ClerkAnswer answer);
  std::vector<ClerkAnswer> take();             // what is there
  void wait(std::chrono::nanoseconds budget);  // until something is there

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::vector<ClerkAnswer> answers_;
};

class Clerk {
 public:
  explicit Clerk(Device& device);
  ~Clerk();  // what was not begun is dropped
  Clerk(const Clerk&) = delete;

  struct Task {
    Op op = Op::telemetry;  // alloc, free or telemetry
    uint32_t slot = 0;
    Context* context = nullptr;
    ClerkInbox* inbox = nullptr;
    Bytes size{};                     // of alloc
    std::unique_ptr<HbmBlock> block;  // of free
  };
  void submit(Task task);

 private:
  void serve();
  ClerkAnswer answer(Task& task);
  [[noreturn]] void refuse_telemetry() const;

  Device& device_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Task> tasks_;
  bool stop_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace kz::load
