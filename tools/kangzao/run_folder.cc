// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/run_folder.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <random>

namespace kz {
namespace fs = std::filesystem;

std::string new_run_directory() {
  char when[32];
  time_t now = ::time(nullptr);
  tm utc;
  ::gmtime_r(&now, &utc);
  ::strftime(when, sizeof when, "%Y%m%d-%H%M%S", &utc);
  return fmt::format("runs/{}-{:06x}", when, std::random_device{}() & 0xffffff);
}

void point_latest(const std::string& directory) {
  fs::path link = fs::path(directory).parent_path() / "latest",
           fresh = link.string() + "." + std::to_string(::getpid());
  std::error_code ec;
  fs::create_symlink(fs::path(directory).filename(), fresh, ec);
  if (!ec) fs::rename(fresh, link, ec);
  if (ec) fs::remove(fresh, ec);
}

}  // namespace kz
