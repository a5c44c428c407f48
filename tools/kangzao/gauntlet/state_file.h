// SPDX-License-Identifier: GPL-2.0-or-later
// What a gauntlet has finished, so that the next one can go on: one JSON object a line, each with the key of
// all that its result depends on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kz::gauntlet {

class StateFile {
 public:
  // `path` empty: nothing is kept.
  StateFile(std::string path, std::string key, std::string build)
      : path_(std::move(path)), key_(std::move(key)), build_(std::move(build)) {}
  // The records of this key, oldest first. Lines of other keys and versions are left out.
  std::vector<nlohmann::json> read() const;
  // Throws Error(io) where it cannot be written.
  void add(nlohmann::json record) const;

 private:
  std::string path_, key_, build_;
};

}  // namespace kz::gauntlet
