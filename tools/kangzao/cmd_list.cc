// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/kangzao/commands.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/selection_options.h"

namespace kz {

void add_list(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("list", "every test: id, level, what it needs, what it means");
  sub->footer(
      "Examples:\n  kangzao list\n  kangzao list --level 4 --profile quick\n  kangzao list --json --filter "
      "'dma.*'");
  auto selection = std::make_shared<Selection>();
  selection->profile = "all";
  selection->whole = true;
  auto json = std::make_shared<bool>(false);
  add_selection_options(*sub, *selection);
  sub->add_flag("--json", *json, "one JSON document");
  sub->callback([=, &exit_status] {
    std::string profile = selection->profile == "all" ? "quick" : selection->profile;
    auto tests = select_tests(load_catalog(program_directory(), profile), *selection);
    if (*json) {
      nlohmann::json out = {{"schema", 1}, {"tests", nlohmann::json::array()}};
      for (auto& t : tests) out["tests"].push_back(t.to_json());
      write_output(out.dump(1) + "\n", "");
    } else {
      std::string out;
      for (auto& t : tests)
        out += fmt::format("{} {:<44} {}\n{:48}needs {}; {} s{}\n", t.level, t.id, t.meaning, "",
                           t.needs.empty() ? "nothing" : fmt::format("{}", fmt::join(t.needs, ", ")),
                           t.limit_s, t.labels.empty() ? "" : fmt::format("; {}", fmt::join(t.labels, ", ")));
      out += fmt::format("{} tests\n", tests.size());
      write_output(out, "");
    }
    exit_status = 0;
  });
}

}  // namespace kz
