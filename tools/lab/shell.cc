// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/shell.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tools/kangzao/runner/run.h"

namespace kz::lab {
namespace {

constexpr char leave = 0x1d;  // Ctrl-]

// Every key goes to the guest as it is; the terminal is given back as found.
class RawTerminal {
 public:
  RawTerminal() : is_(::isatty(STDIN_FILENO) == 1 && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!is_) return;
    termios raw = before_;
    ::cfmakeraw(&raw);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  ~RawTerminal() {
    if (is_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_{};
  bool is_;
};

bool write_all(int fd, const char* data, ssize_t size) {
  while (size > 0) {
    ssize_t n = ::write(fd, data, static_cast<size_t>(size));
    if (n <= 0) return false;
    data += n;
    size -= n;
  }
  return true;
}

}  // namespace

Guest::State talk(Guest& guest, Deadline deadline) {
  RawTerminal terminal;
  bool input = true;
  char chunk[4096];
  for (;;) {
    auto state = guest.watch(std::chrono::milliseconds(0));
    pollfd p[2] = {{guest.console().get(), POLLIN, 0}, {input ? STDIN_FILENO : -1, POLLIN, 0}};
    ::poll(p, 2, 200);
    if ((p[0].revents & POLLIN) != 0)
      if (ssize_t n = ::read(p[0].fd, chunk, sizeof chunk); n > 0) write_all(STDOUT_FILENO, chunk, n);
    if (p[1].revents != 0) {
      ssize_t n = ::read(STDIN_FILENO, chunk, sizeof chunk);
      input = n > 0;
      if (n > 0 && std::find(chunk, chunk + n, leave) != chunk + n) return state;
      if (n > 0) write_all(guest.console().get(), chunk, n);
    }
    if (state != Guest::State::running || deadline.passed() || told_to_stop()) return state;
  }
}

}  // namespace kz::lab
