// SPDX-License-Identifier: GPL-2.0-or-later
// Calls to the reference driver and what their errors mean (shim/uapi/kz_ioctl.h).
#pragma once

#include <cstdint>
#include <string>

#include "shim/base/error.h"
#include "shim/base/units.h"
#include "shim/uapi/kz_ioctl.h"

namespace kz::dev {

// 0 or -errno. Begins again after a signal.
int raw_call(int fd, unsigned long number, void* args);

// Fills in argsz. Fields that the driver gives out must be 0.
template <class Args>
int call(int fd, unsigned long number, Args& args) {
  args.argsz = sizeof args;
  return raw_call(fd, number, &args);
}

// Pauses for a moment; false: the deadline has passed.
bool pause_before(const Deadline& deadline);

// A call that needs the device. While that is being reset the call is made again, until the deadline:
// -EAGAIN.
template <class Args>
int call_by(const Deadline& deadline, int fd, unsigned long number, Args& args) {
  args.flags |= KZ_CALL_NOWAIT;
  int rc;
  do rc = call(fd, number, args);
  while (rc == -EAGAIN && pause_before(deadline));
  return rc;
}

// The code of a call that failed with `err` (positive). `status`: what the device ended its command with, 0
// where the call ran none.
Errc code_of_call(int err, uint32_t status);

// Throws the error of a call. `remedy` may be empty: then the usual one for this errno.
[[noreturn]] void throw_call(std::string operation, std::string target, int err, uint32_t status = 0,
                             std::string remedy = {});

}  // namespace kz::dev
