// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/registry.h"

#include <cmath>
#include <map>
#include <utility>

#include "tests/harness/session.h"

namespace kz::test {
namespace {

using Key = std::pair<std::string, std::string>;

// A function's own static: declarations run before main, in any order.
std::map<Key, TestInfo>& declarations() {
  static std::map<Key, TestInfo> all;
  return all;
}

}  // namespace

bool declare(const char* suite, const char* test, TestInfo info) {
  return declarations().emplace(Key{suite, test}, std::move(info)).second;
}

std::string test_id(std::string_view suite, std::string_view test) {
  std::string id(suite);
  if (size_t at = id.find('_'); at != std::string::npos) id[at] = '.';
  return id + "." + std::string(test);
}

const TestInfo* find_declaration(std::string_view suite, std::string_view test) {
  auto it = declarations().find(Key{suite, test});
  return it == declarations().end() ? nullptr : &it->second;
}

nlohmann::json list_declarations(const std::string& program) {
  const double scale = Session::get().scale();
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [key, info] : declarations()) {
    nlohmann::json needs = nlohmann::json::array();
    for (Cap cap : info.needs) needs.push_back(to_string(cap));
    list.push_back({{"id", test_id(key.first, key.second)},
                    {"suite", key.first},
                    {"test", key.second},
                    {"meaning", info.meaning},
                    {"level", info.level},
                    {"labels", info.labels},
                    {"needs", std::move(needs)},
                    {"limit_s", info.scaled ? std::llround(static_cast<double>(info.limit.count()) * scale)
                                            : static_cast<long long>(info.limit.count())},
                    {"profiles", info.profiles},
                    {"program", program}});
  }
  return list;
}

}  // namespace kz::test
