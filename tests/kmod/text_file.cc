// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "shim/base/fd.h"

namespace kz::test {

std::string text_file(const std::string& path, int* error, size_t limit) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string out;
  char chunk[32768];
  ssize_t n = fd ? 1 : -1;
  while (fd && out.size() < limit && (n = ::read(fd.get(), chunk, sizeof chunk)) > 0)
    out.append(chunk, static_cast<size_t>(n));
  if (error != nullptr) *error = n < 0 ? errno : 0;
  return out;
}

std::string value_of(const std::string& path) {
  std::string text = text_file(path, nullptr, 1 << 16);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

int write_file(const std::string& path, std::string_view text) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return -errno;
  return ::write(fd.get(), text.data(), text.size()) < 0 ? -errno : 0;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

}  // namespace kz::test
