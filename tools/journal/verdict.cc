// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/journal/verdict.h"

namespace kz {

std::string_view to_string(Verdict v) {
  switch (v) {
    case Verdict::pass:
      return "pass";
    case Verdict::fail:
      return "fail";
    case Verdict::warn:
      return "warn";
    case Verdict::skip:
      return "skip";
    case Verdict::blocked:
      return "blocked";
    case Verdict::crash:
      return "crash";
    case Verdict::timeout:
      return "timeout";
    case Verdict::device_lost:
      return "device-lost";
    case Verdict::not_run:
      return "not-run";
  }
  return "unknown";
}

std::optional<Verdict> parse_verdict(std::string_view text) {
  for (Verdict v : all_verdicts)
    if (to_string(v) == text) return v;
  return std::nullopt;
}

}  // namespace kz
