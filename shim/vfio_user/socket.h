// SPDX-License-Identifier: GPL-2.0-or-later
// The UNIX socket below the protocol: connecting, and messages with descriptors.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/base/units.h"

namespace kz::vfio_user {

// Non-blocking stream socket. Throws Error: usage (path too long), not_found (no socket there, nobody
// listens), permission, busy (the server takes no client before the deadline).
Fd connect_to(const std::string& path, Deadline deadline);

// Sends all parts as one stretch of bytes, with `fds` beside the first. Throws Error(timeout) when the peer
// does not read
// (`sent` tells whether the stream was begun and is thus unusable), Error(gone).
void send_all(int socket, std::span<const std::span<const std::byte>> parts, std::span<const int> fds,
              Deadline deadline, const std::string& peer, bool& begun);

struct Received {
  size_t bytes = 0;
  std::vector<Fd> fds;
  bool closed = false;
};
// Waits for bytes, or the end of the connection.
Received receive(int socket, std::span<std::byte> room);

// Is it an eventfd? Other descriptors could make who signals them wait.
bool is_eventfd(int fd);
// Can `size` bytes from `offset` be mapped without ever running over the end of the file (SIGBUS)? True for a
// regular file or memfd that is long enough and sealed against shrinking.
bool is_safe_to_map(int fd, uint64_t offset, uint64_t size);

}  // namespace kz::vfio_user
