// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <CLI/CLI.hpp>

#include "tools/kangzao/runner/catalog.h"

namespace kz {

// --profile, --filter, --group, --level, --label, --no-label: the same for list and run.
inline void add_selection_options(CLI::App& sub, Selection& s) {
  sub.add_option("--profile", s.profile, "quick, full, night, or all")->capture_default_str();
  sub.add_option("--filter", s.filters, "test ids, with * and ?")->allow_extra_args(false);
  sub.add_option("--group", s.groups, "first word of the ids")->allow_extra_args(false);
  sub.add_option("--level", s.levels, "1 to 4")->check(CLI::Range(1, 4))->allow_extra_args(false);
  sub.add_option("--label", s.labels, "only tests with this label")->allow_extra_args(false);
  sub.add_option("--no-label", s.without_labels, "only tests without this label")->allow_extra_args(false);
}

}  // namespace kz
