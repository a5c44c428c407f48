// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace kz {

void occupy_standard_fds() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      // The lowest free one is `fd`. Read-only also for output, so that writing is an error and not a
      // success.
      if (::open("/dev/null", O_RDONLY) != fd) return;
}

void say(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace kz
