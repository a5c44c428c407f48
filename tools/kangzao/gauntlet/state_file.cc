// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/gauntlet/state_file.h"

#include <filesystem>
#include <fstream>

#include "shim/base/error.h"

namespace kz::gauntlet {
namespace fs = std::filesystem;
using nlohmann::json;

Finished StateFile::read() const {
  Finished out;
  std::ifstream in(path_);
  for (std::string line; std::getline(in, line);) {
    json j = json::parse(line, nullptr, false);
    if (!j.is_object() || j.value("key", json()) != key_) continue;
    try {
      if (j.contains("row")) out.rows[j["row"].at("id")] = row_from_json(j["row"]);
      if (j.contains("clean")) {
        CleanRun run = clean_from_json(j["clean"]);
        out.clean[run.kernel].push_back(run);
      }
      if (j.contains("ignored")) out.ignored.insert(j["ignored"].get<std::string>());
    } catch (const json::exception&) {
      continue;  // a line that another version wrote
    }
  }
  return out;
}

void StateFile::add(const RowResult& row) const { write({{"row", to_json(row)}}); }

void StateFile::add(const CleanRun& run) const { write({{"clean", to_json(run)}}); }

void StateFile::add_ignored(const std::string& test) const { write({{"ignored", test}}); }

void StateFile::write(json record) const {
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
