// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/run_folders.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "shim/base/error.h"

namespace kz::gauntlet {
namespace fs = std::filesystem;

RunFolders::RunFolders(const std::string& keep) : base_(keep), keep_(!keep.empty()) {
  if (keep_) {
    fs::create_directories(base_);
    return;
  }
  base_ = (fs::temp_directory_path() / "kz-gauntlet-XXXXXX").string();
  if (::mkdtemp(base_.data()) == nullptr) throw_errno("create folder", base_);
}

RunFolders::~RunFolders() {
  std::error_code ec;
  if (!keep_) fs::remove_all(base_, ec);
}

std::string RunFolders::fresh() { return fmt::format("{}/{:03}", base_, ++runs_); }

void RunFolders::done(const std::string& folder, const std::string& what) const {
  std::error_code ec;
  if (keep_)
    fs::rename(folder, folder + "-" + what, ec);  // where it cannot be, the number must do
  else
    fs::remove_all(folder, ec);
}

}  // namespace kz::gauntlet
