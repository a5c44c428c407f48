// SPDX-License-Identifier: GPL-2.0-or-later
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shim/base/fd.h"
#include "tools/journal/writer.h"
#include "tools/kangzao/commands.h"

namespace kz {

void write_output(const std::string& text, const std::string& file) {
  Fd opened;
  if (!file.empty()) {
    opened = Fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!opened)
      throw JournalError(fmt::format("create {}: {}{}", file, std::strerror(errno),
                                     errno == EEXIST ? "; name a file that is not there yet" : ""));
  }
  int fd = file.empty() ? STDOUT_FILENO : opened.get();
  for (size_t at = 0; at < text.size();) {
    ssize_t n = ::write(fd, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int error = errno;
      if (!file.empty()) ::unlink(file.c_str());  // half a report is none
      throw JournalError(
          fmt::format("write {}: {}", file.empty() ? "standard output" : file, std::strerror(error)));
    }
    at += static_cast<size_t>(n);
  }
}

}  // namespace kz
