// SPDX-License-Identifier: GPL-2.0-or-later
// How commands get to a queue of the driver and answers come back: io_uring commands or ioctls.
#pragma once

#include <memory>
#include <vector>

#include "shim/base/units.h"
#include "shim/dev/outcome.h"
#include "shim/uapi/kz_ioctl.h"

namespace kz::dev {

// One thread at a time. At most as many commands in flight as the queue has entries.
class Way {
 public:
  virtual ~Way() = default;
  // Keeps the command for the next flush().
  virtual void put(const kz_cmd& command, uint64_t tag) = 0;
  // Hands over what was put. What the driver does not take is answered, too.
  virtual void flush(std::vector<Ended>& out) = 0;
  // Answers that are there now.
  virtual void peek(std::vector<Ended>& out) = 0;
  // Waits for at least one answer, or until the deadline.
  virtual void wait(const Deadline& deadline, std::vector<Ended>& out) = 0;
  // A file that is readable when there are answers; -1 where there is none.
  virtual int ready_fd() const { return -1; }
  // No answer will come any more: the queue is destroyed, or dead and emptied.
  virtual bool over() const = 0;
};

// Whether this kernel and user may use io_uring with entries large enough for a command; else why not.
std::string why_no_uring();

// `fd`: the node; it must stay open as long as the way. `entries`: of the queue. Throw Error(permission),
// Error(io).
std::unique_ptr<Way> make_uring_way(int fd, uint32_t queue, uint32_t entries);
std::unique_ptr<Way> make_ioctl_way(int fd, uint32_t queue, uint32_t entries);

}  // namespace kz::dev
