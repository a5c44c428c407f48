// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "shim/base/error.h"
#include "shim/load/clerk.h"
#include "shim/load/device_worker.h"
#include "shim/load/host_worker.h"

namespace kz::load {
namespace {

constexpr auto lead = 5ms;  // between "all are ready" and the start

// Threads that io_uring started in this process because an operation could not be done without waiting.
uint64_t count_io_workers() {
  uint64_t n = 0;
  std::error_code ec;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ec)) {
    std::ifstream in(task.path() / "comm");
    std::string name;
    if (std::getline(in, name) && name.starts_with("iou-wrk")) ++n;
  }
  return n;
}

// Lets threads go at once, and waits for all of them.
class Gate {
 public:
  explicit Gate(size_t threads) : waiting_for_(threads) {}
  void arrive() {
    std::lock_guard lock(mutex_);
    --waiting_for_;
    changed_.notify_all();
  }
  bool all_arrived(std::chrono::nanoseconds budget) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, budget, [&] { return waiting_for_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t waiting_for_;
};

class ProcessPart {
 public:
  ProcessPart(const Plan& plan, unsigned process, Ledger& ledger, const DeviceSource& devices,
              const Hooks& hooks)
      : plan_(plan), ledger_(ledger), source_(devices), hooks_(hooks) {
    for (size_t w = 0; w < ledger.workers().size(); ++w)
      if (ledger.workers()[w].process == process) mine_.push_back(w);
  }

  void run(Start start) {
    for (size_t w : mine_) ledger_.set_state(w, WorkerAccount::preparing);
    bool prepared = prepare_devices();
    Gate ready(mine_.size()), done(mine_.size());
    std::atomic<bool> go{prepared};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < mine_.size(); ++i)
      threads.emplace_back([&, i] { thread_body(i, ready, done, go); });
    auto look = [&] {
      ledger_.note_io_workers(count_io_workers());
      if (hooks_.stop && hooks_.stop()) ledger_.ask_stop(1);
    };
    while (!ready.all_arrived(50ms)) look();
    if (start == Start::now && !any_failed())
      ledger_.set_start((Clock::now() + lead).time_since_epoch().count());
    else if (start == Start::now)
      ledger_.ask_stop(1);
    while (!done.all_arrived(50ms)) look();
    look();
    for (std::thread& t : threads) t.join();
    clerks_.clear();  // before the contexts that it works for
    for (auto& worker : device_workers_)
      if (worker) worker->finish();
  }

 private:
  const Job& job_of(size_t w) const { return plan_.jobs[ledger_.workers()[w].job]; }

  bool told_to_stop() const { return ledger_.stop() != 0 || (hooks_.stop && hooks_.stop()); }

  // In this thread: it is the one that calls devices.
  bool prepare_devices() {
    device_workers_.resize(mine_.size());
    TableCache tables([this] { return told_to_stop(); });
    for (size_t i = 0; i < mine_.size(); ++i) {
      size_t w = mine_[i];
      const Job& job = job_of(w);
      if (job.target != Target::device) continue;
      try {
        Device& device = device_of(job.devices[ledger_.workers()[w].device]);
        bool calls = job.wants(Op::alloc) || job.wants(Op::telemetry);
        device_workers_[i] = std::make_unique<DeviceWorker>(
            job, ledger_.workers()[w], device, calls ? &clerk_of(device) : nullptr, ledger_, w, hooks_);
        device_workers_[i]->prepare(tables);
      } catch (const Stopped&) {
        ledger_.ask_stop(1);
        return false;
      } catch (const Error& e) {
        ledger_.account(w).fail(WorkerAccount::failed_to_start, e);
        return false;
      }
    }
    return true;
  }

  Device& device_of(const std::string& uri) {
    auto found = devices_.find(uri);
    if (found == devices_.end()) found = devices_.emplace(uri, &source_(uri)).first;
    return *found->second;
  }

  Clerk& clerk_of(Device& device) {
    auto& clerk = clerks_[&device];
    if (!clerk) clerk = std::make_unique<Clerk>(device);
    return *clerk;
  }

  bool any_failed() const {
    return std::ranges::any_of(mine_,
                               [&](size_t w) { return ledger_.state(w) == WorkerAccount::failed_to_start; });
  }

  Clock::time_point await_start() {
    while (ledger_.start() == 0 && ledger_.stop() == 0) std::this_thread::sleep_for(1ms);
    return Clock::time_point(std::chrono::nanoseconds(ledger_.start()));
  }

  void thread_body(size_t i, Gate& ready, Gate& done, const std::atomic<bool>& go) {
    size_t w = mine_[i];
    std::unique_ptr<HostWorker> host;
    bool good = go;
    if (good && !device_workers_[i]) {
      try {
        host = std::make_unique<HostWorker>(job_of(w), ledger_.workers()[w], ledger_, w);
        host->prepare();
      } catch (const Error& e) {
        ledger_.account(w).fail(WorkerAccount::failed_to_start, e);
        good = false;
      }
    }
    if (good) ledger_.set_state(w, WorkerAccount::ready);
    ready.arrive();
    if (good) {
      auto start = await_start();
      if (ledger_.start() == 0)
        ledger_.set_state(w, WorkerAccount::ended);  // stopped before it began
      else if (host)
        host->run(start);
      else
        device_workers_[i]->run(start);
    } else if (ledger_.state(w) == WorkerAccount::preparing) {
      ledger_.set_state(w, WorkerAccount::ended);
    }
    done.arrive();
  }

  const Plan& plan_;
  Ledger& ledger_;
  const DeviceSource& source_;
  const Hooks& hooks_;
  std::vector<size_t> mine_;
  std::map<std::string, Device*> devices_;
  std::vector<std::unique_ptr<DeviceWorker>> device_workers_;
  std::map<Device*, std::unique_ptr<Clerk>> clerks_;
};

}  // namespace

Device& OpenDevices::operator()(const std::string& uri) {
  auto& device = devices_[uri];
  if (!device) device = open_device(uri, {.exclusive = false});  // the load's other processes use it, too
  return *device;
}

void run_process(const Plan& plan, unsigned process, Ledger& ledger, const DeviceSource& devices, Start start,
                 const Hooks& hooks) {
  ProcessPart(plan, process, ledger, devices, hooks).run(start);
}

}  // namespace kz::load
