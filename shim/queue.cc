// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/queue.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/status_error.h"

namespace kz {

bool QueueAudit::clean() const {
  return completion_without_interrupt == 0 && interrupt_without_completion == 0 &&
         duplicate_completion == 0 && unknown_completion == 0 && wrong_queue == 0 && bad_sq_head == 0 &&
         bad_phase == 0 && reserved_set == 0;
}

void wait_for_any(std::span<Queue* const> queues, std::chrono::nanoseconds budget) {
  std::vector<pollfd> files;
  for (const Queue* q : queues) {
    Queue::Signal s = q->signal();
    budget = std::min(budget, s.trust);
    if (s.fd >= 0) files.push_back({s.fd, POLLIN, 0});
  }
  int64_t ns = std::max<int64_t>(budget.count(), 0);
  timespec ts{ns / 1'000'000'000, ns % 1'000'000'000};
  ::ppoll(files.data(), files.size(), &ts, nullptr);
  for (Queue* q : queues) q->take_signal();
}

Completion run(Queue& queue, const Command& command, std::chrono::nanoseconds budget) {
  Deadline deadline(budget);
  Ticket ticket = queue.submit(command, true);  // wait() rings: one system call instead of two
  do {
    for (const Completion& c : queue.wait(Deadline(deadline.left())))
      if (c.ticket == ticket) return c;
  } while (!deadline.passed());
  throw Error({Errc::timeout, "run", fmt::format("{} on queue {}", name_of(command.work), queue.id()),
               fmt::format("no completion after {} of {}", to_string(deadline.elapsed()), to_string(budget)),
               "", 0});
}

Completion run_ok(Queue& queue, const Command& command, std::chrono::nanoseconds budget) {
  Completion c = run(queue, command, budget);
  if (c.status == Status::ok) return c;
  std::string target = fmt::format("{} on queue {}", name_of(command.work), queue.id());
  if (c.status == Status::lost)
    throw Error({Errc::gone, "run", target, "the queue or device was reset before it completed", "", 0});
  throw StatusError(
      c.status,
      {Errc::status, "run", target,
       fmt::format("ended with {} ({:#x})", to_string(c.status), static_cast<unsigned>(c.status)), "", 0});
}

}  // namespace kz
