// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "shim/base/error.h"
#include "shim/base/text.h"
#include "tools/kangzao/runner/process.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view program_prefix = "kz-test-";
// Tests that misbehave on purpose: only by name, never by profile.
constexpr std::string_view selftest_suite = "selftest";
// Tests of a driver's life: they unload it, so only by name, group or this label, and on a machine for that.
const std::string kernel_label = "kernel";

TestDeclaration parse(const nlohmann::json& j, const std::string& program) {
  TestDeclaration t;
  t.id = j.at("id");
  t.suite = j.at("suite");
  t.test = j.at("test");
  t.meaning = j.at("meaning");
  t.level = j.at("level");
  t.limit_s = j.at("limit_s");
  t.labels = j.at("labels").get<std::vector<std::string>>();
  t.needs = j.at("needs").get<std::vector<std::string>>();
  t.profiles = j.at("profiles").get<std::vector<std::string>>();
  t.program = program;
  return t;
}

bool contains(const std::vector<std::string>& list, const std::string& x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

[[noreturn]] void unknown(const char* what, const std::string& word, const std::vector<std::string>& known) {
  auto near = near_matches(word, known);
  throw Error({Errc::usage, "select", fmt::format("{} '{}'", what, word), "nothing is called that",
               near.empty() ? "see 'kangzao list'" : fmt::format("did you mean {}?", fmt::join(near, ", ")),
               0});
}

std::string group_of(const TestDeclaration& t) { return t.id.substr(0, t.id.find('.')); }

}  // namespace

bool TestDeclaration::has_label(const std::string& label) const { return contains(labels, label); }

nlohmann::json TestDeclaration::to_json() const {
  return {{"id", id},
          {"suite", suite},
          {"test", test},
          {"meaning", meaning},
          {"level", level},
          {"limit_s", limit_s},
          {"labels", labels},
          {"needs", needs},
          {"profiles", profiles},
          {"program", fs::path(program).filename()}};
}

std::vector<TestDeclaration> load_catalog(const std::string& directory, const std::string& profile) {
  std::vector<std::string> programs;
  std::error_code ec;
  for (auto& entry : fs::directory_iterator(directory, ec))
    if (entry.path().filename().string().starts_with(program_prefix)) programs.push_back(entry.path());
  std::sort(programs.begin(), programs.end());
  if (programs.empty())
    throw Error({Errc::not_found, "find test programs in", directory,
                 fmt::format("no {}* there", program_prefix), "build first", 0});
  std::vector<TestDeclaration> all;
  for (auto& program : programs) {
    Captured got =
        run_captured({program, "--kz-list"}, {{"KANGZAO_PROFILE", profile}}, std::chrono::seconds(20));
    auto list = nlohmann::json::parse(got.output, nullptr, false);
    if (got.status != 0 || !list.is_array())
      throw Error(
          {Errc::io, "list tests of", program,
           fmt::format("it ended with {} and said '{}'", describe_status(got.status), last_line(got.errors)),
           "rebuild it", 0});
    try {
      for (auto& item : list) all.push_back(parse(item, program));
    } catch (const nlohmann::json::exception& e) {
      throw Error({Errc::io, "list tests of", program, e.what(), "rebuild it", 0});
    }
  }
  std::sort(all.begin(), all.end(),
            [](auto& a, auto& b) { return std::tie(a.level, a.id) < std::tie(b.level, b.id); });
  return all;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<TestDeclaration> select_tests(const std::vector<TestDeclaration>& all, const Selection& s) {
  std::vector<std::string> ids;
  std::set<std::string> groups, labels, profiles{"all"};
  for (auto& t : all) {
    ids.push_back(t.id);
    groups.insert(group_of(t));
    labels.insert(t.labels.begin(), t.labels.end());
    profiles.insert(t.profiles.begin(), t.profiles.end());
  }
  auto list = [](const std::set<std::string>& set) {
    return std::vector<std::string>(set.begin(), set.end());
  };
  if (!profiles.contains(s.profile)) unknown("profile", s.profile, list(profiles));
  for (auto& f : s.filters)
    if (std::none_of(ids.begin(), ids.end(), [&](auto& id) { return glob_match(f, id); }))
      unknown("test", f, ids);
  for (auto& g : s.groups)
    if (!groups.contains(g)) unknown("group", g, list(groups));
  for (auto* wanted : {&s.labels, &s.without_labels})
    for (auto& l : *wanted)
      if (!labels.contains(l)) unknown("label", l, list(labels));

  for (auto& o : s.order)
    if (std::none_of(ids.begin(), ids.end(), [&](auto& id) { return glob_match(o, id); }))
      unknown("test", o, ids);

  std::vector<TestDeclaration> out;
  for (auto& t : all) {
    bool named =
        std::any_of(s.filters.begin(), s.filters.end(), [&](auto& f) { return glob_match(f, t.id); });
    if (!s.filters.empty() && !named) continue;
    // A test asked for by its own name runs whatever the profile.
    bool exactly = contains(s.filters, t.id);
    if (t.suite.starts_with(selftest_suite) && s.filters.empty() &&
        !contains(s.groups, std::string(selftest_suite)))
      continue;
    if (t.has_label(kernel_label) && !s.whole && s.filters.empty() && !contains(s.groups, group_of(t)) &&
        !contains(s.labels, kernel_label))
      continue;
    if (s.profile != "all" && !exactly && !t.suite.starts_with(selftest_suite) &&
        !contains(t.profiles, s.profile))
      continue;
    if (!s.groups.empty() && !contains(s.groups, group_of(t))) continue;
    if (!s.levels.empty() && std::find(s.levels.begin(), s.levels.end(), t.level) == s.levels.end()) continue;
    if (!s.labels.empty() &&
        std::none_of(s.labels.begin(), s.labels.end(), [&](auto& l) { return t.has_label(l); }))
      continue;
    if (std::any_of(s.without_labels.begin(), s.without_labels.end(),
                    [&](auto& l) { return t.has_label(l); }))
      continue;
    out.push_back(t);
  }
  auto rank = [&](const TestDeclaration& t) {
    return std::find_if(s.order.begin(), s.order.end(), [&](auto& g) { return glob_match(g, t.id); }) -
           s.order.begin();
  };
  std::stable_sort(out.begin(), out.end(), [&](auto& a, auto& b) { return rank(a) < rank(b); });
  return out;
}

}  // namespace kz
