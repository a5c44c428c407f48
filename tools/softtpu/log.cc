// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/log.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <chrono>

#include "shim/base/error.h"

namespace kz::softtpu {

Log::Log(const std::string& path)
    : fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
  if (!fd_) throw_errno("open log", path);
}

void Log::line(const std::string& text) const {
  if (!fd_) return;
  auto now = std::chrono::system_clock::now();
  auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  auto stamp = fmt::gmtime(std::chrono::system_clock::to_time_t(now));
  std::string line = fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z {}\n", stamp, ms, text);
  [[maybe_unused]] ssize_t n = ::write(fd_.get(), line.data(), line.size());
}

}  // namespace kz::softtpu
