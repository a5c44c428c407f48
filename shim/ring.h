// SPDX-License-Identifier: GPL-2.0-or-later
// io_uring in which ringing a doorbell (eventfd write) and waiting for an
// interrupt (eventfd read) are operations.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <span>
#include <vector>

#include "shim/base/units.h"

namespace kz {

// One ring, one thread. Every operation carries a tag that comes back with its
// result.
class Ring {
public:
  struct Done {
    uint64_t tag;
    int32_t result; // as the system call would return: bytes, or -errno
  };

  // Throws Error(permission) where the kernel or a container forbids io_uring,
  // with the sysctl to look at.
  explicit Ring(unsigned entries);
  ~Ring();
  Ring(const Ring &) = delete;
  Ring &operator=(const Ring &) = delete;

  // Adds 1 to an eventfd: rings a doorbell. The eventfd must outlive the
  // operation.
  void write_eventfd(int fd, uint64_t tag);
  // Takes the count of an eventfd into *count when it is signalled: waits for
  // an interrupt.
  void read_eventfd(int fd, uint64_t *count, uint64_t tag);
  // Asks the kernel to cancel the operation with this tag; its own result is
  // -ECANCELED or the real one.
  void cancel(uint64_t tag, uint64_t cancel_tag);

  // Hands everything queued to the kernel, without waiting.
  void submit();
  // Hands everything queued to the kernel and waits for at least one result or
  // the deadline. Returns what is there.
  std::span<const Done> wait(Deadline deadline);
  std::span<const Done> peek();

private:
  io_uring_sqe *next();
  std::span<const Done> collect();

  io_uring ring_{};
  uint64_t one_ = 1;
  std::vector<Done> done_;
};

} // namespace kz
