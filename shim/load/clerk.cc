// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/clerk.h"

#include <utility>

#include "shim/status_error.h"
#include "shim/uapi/kz_regs.h"

namespace kz::load {

void ClerkInbox::put(ClerkAnswer answer) {
  std::lock_guard lock(mutex_);
  answers_.push_back(std::move(answer));
  there_.notify_one();
}

std::vector<ClerkAnswer> ClerkInbox::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(answers_, {});
}

void ClerkInbox::wait(std::chrono::nanoseconds budget) {
  std::unique_lock lock(mutex_);
  there_.wait_for(lock, budget, [&] { return !answers_.empty(); });
}

Clerk::Clerk(Device& device) : device_(device), thread_([this] { serve(); }) {}

Clerk::~Clerk() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_one();
  }
  thread_.join();
}

void Clerk::submit(Task task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  work_.notify_one();
}

void Clerk::serve() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    ClerkAnswer a = answer(task);
    a.slot = task.slot;
    a.seen = Clock::now();
    task.inbox->put(std::move(a));
  }
}

ClerkAnswer Clerk::answer(Task& task) {
  ClerkAnswer a;
  try {
    if (task.op == Op::alloc) {
      a.block = task.context->alloc(task.size);
    } else if (task.op == Op::free) {
      a.status = task.block->free();
    } else if (device_.telemetry().all_ones) {
      refuse_telemetry();
    }
  } catch (const StatusError& e) {
    a.status = e.status();
    a.finding = e.what();
  } catch (const Error& e) {
    if (e.code() == Errc::gone || e.code() == Errc::timeout) {
      a.error = e;
      return a;
    }
    a.status = e.code() == Errc::no_memory ? Status::no_memory : Status::internal;
    a.finding = e.what();
  }
  return a;
}

// Telemetry of all ones is wrong; the device is gone where its registers read so, too.
void Clerk::refuse_telemetry() const {
  bool gone = device_.capabilities().has(Cap::registers) && device_.read_register(KZ_REG_MAGIC) == ~0u;
  throw Error({gone ? Errc::gone : Errc::bad_data, "read telemetry of", device_.identity().uri,
               gone ? "registers read all ones" : "it reads all ones",
               gone ? "check power and link of the device" : "", 0});
}

}  // namespace kz::load
