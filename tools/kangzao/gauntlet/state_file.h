// SPDX-License-Identifier: GPL-2.0-or-later
// What a gauntlet has finished, so that the next one can go on: one JSON object a line, each with the key of
// all that its result depends on.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/kangzao/gauntlet/result.h"

namespace kz::gauntlet {

struct Finished {
  std::map<std::string, RowResult> rows;
  std::map<std::string, std::vector<CleanRun>> clean;  // by kernel; "" where there is none
  std::set<std::string> ignored;                       // tests that are not clean without a fault
};

class StateFile {
 public:
  // `path` empty: nothing is kept.
  StateFile(std::string path, std::string key, std::string build)
      : path_(std::move(path)), key_(std::move(key)), build_(std::move(build)) {}
  // What has this key. Lines of other keys and versions are left out.
  Finished read() const;
  // Throw Error(io) where it cannot be written.
  void add(const RowResult& row) const;
  void add(const CleanRun& run) const;
  void add_ignored(const std::string& test) const;

 private:
  void write(nlohmann::json record) const;
  std::string path_, key_, build_;
};

}  // namespace kz::gauntlet
