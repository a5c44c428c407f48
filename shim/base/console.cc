// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>

namespace kz {

void occupy_standard_fds() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      // The lowest free one is `fd`. Read-only also for output, so that writing is an error and not a
      // success.
      if (::open("/dev/null", O_RDONLY) != fd) return;
}

// What others named (files, devices) may hold what would steer a terminal. Piece by piece: there may be no
// memory left.
void say(std::string_view text) noexcept {
  while (!text.empty()) {
    char piece[512];
    const size_t size = text.copy(piece, sizeof piece);
    for (char& c : std::span(piece, size))
      if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
    const ssize_t n = ::write(STDERR_FILENO, piece, size);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace kz
