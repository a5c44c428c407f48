// SPDX-License-Identifier: GPL-2.0-or-later
// The driver's device node: found to be one before it is opened, then opened and asked.
#pragma once

#include <string>

#include "shim/base/fd.h"
#include "shim/uapi/kz_ioctl.h"

namespace kz::dev {

struct Node {
  std::string path;         // "/dev/kz0"
  std::string kernel_name;  // "kz0": what the kernel log and /proc/interrupts call it
  Fd fd;
  Fd lock;  // another open file, locked: io_uring may hold the first one for a while after its end
  kz_info info{};
};

// Throws Error(not_found), Error(permission), Error(usage) for what is no node of the driver (nothing else is
// opened: opening alone can arm a watchdog or hang), Error(unsupported) for a driver of another interface,
// Error(gone). `exclusive`: Error(busy) where another program of this suite, or anybody's context, is on the
// device.
Node open_node(const std::string& path, bool exclusive);

// Does INFO again. Throws as a call does.
kz_info read_info(const Node& node);

// What else the device is used for, as far as it says: contexts that are not ours.
bool others_have_contexts(int fd);

}  // namespace kz::dev
