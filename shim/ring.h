// SPDX-License-Identifier: GPL-2.0-or-later
// io_uring in which ringing a doorbell (eventfd write) and waiting for an interrupt (eventfd read) are
// operations.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <span>
#include <vector>

#include "shim/base/units.h"

namespace kz {

// One ring, one thread at a time. Every operation carries a tag that comes back with its result. Operations
// are queued until submit() or wait() hands all of them to the kernel with one system call.
class Ring {
 public:
  struct Done {
    uint64_t tag;
    int32_t result;  // as the system call would return: bytes, or -errno
  };

  // Throws Error(permission) where the kernel or a container forbids io_uring, with the sysctl to look at.
  explicit Ring(unsigned entries);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Descriptors that are used often; the kernel keeps them open while the ring lives. Once. A kernel that
  // refuses (limit of open files) costs speed only.
  void register_files(std::span<const int> fds);

  // Adds 1 to an eventfd: rings a doorbell. Only a failure comes back, where the kernel can leave success out
  // (5.17). The eventfd must outlive the operation; one that is not O_NONBLOCK works, but costs the kernel a
  // worker thread.
  void write_eventfd(int fd, uint64_t tag);
  // Takes the count of a (blocking) eventfd into *count once it is signalled: waits for an interrupt. `count`
  // must outlive the operation.
  void read_eventfd(int fd, uint64_t* count, uint64_t tag);
  // Asks the kernel to cancel the operation with this tag; its own result is -ECANCELED or the real one.
  void cancel(uint64_t tag, uint64_t cancel_tag);

  // Hands everything queued to the kernel, without waiting.
  void submit();
  // Hands everything queued to the kernel and waits for at least one result or the deadline. The span is
  // valid until the next call; empty when the deadline passed.
  std::span<const Done> wait(Deadline deadline);
  // Results that are there now; hands over nothing.
  std::span<const Done> peek();

 private:
  io_uring_sqe* next();
  void target(io_uring_sqe* sqe, int fd) const;
  std::span<const Done> collect();

  io_uring ring_{};
  bool quiet_success_ = false;  // the kernel can leave out the result of a success
  uint64_t one_ = 1;
  std::vector<int> files_;  // registered, in the order of their indices
  std::vector<Done> done_;
};

}  // namespace kz
