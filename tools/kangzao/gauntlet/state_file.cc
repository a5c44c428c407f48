// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/state_file.h"

#include <filesystem>
#include <fstream>

#include "shim/base/error.h"

namespace kz::gauntlet {
namespace fs = std::filesystem;
using nlohmann::json;

std::vector<json> StateFile::read() const {
  std::vector<json> out;
  std::ifstream in(path_);
  for (std::string line; std::getline(in, line);) {
    json j = json::parse(line, nullptr, false);
    if (j.is_object() && j.value("key", json()) == key_) out.push_back(std::move(j));
  }
  return out;
}

void StateFile::add(json record) const {
  if (path_.empty()) return;
  fs::path path(path_);
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  record["key"] = key_;
  record["build"] = build_;
  std::ofstream out(path, std::ios::app);
  out << record.dump() + "\n";
  if (!out.flush()) throw_errno("write the gauntlet's state", path_);
}

}  // namespace kz::gauntlet
