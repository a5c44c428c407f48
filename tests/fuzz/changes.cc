// SPDX-License-Identifier: GPL-2.0-or-later
// Any bytes as a build log and as a kernel log.
#include "tools/changes/changes.h"

#include <nlohmann/json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (std::string_view release : {"", "6.1.0-50-amd64", "7.3.4"}) {
    auto findings = kz::changes::explain_build(text, release);
    for (auto& f : kz::changes::explain_load(text, release, "6.1.0 SMP")) findings.push_back(std::move(f));
    for (const auto& f : findings) {
      (void)kz::changes::to_text(f);
      (void)kz::changes::to_json(f).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
  }
  return 0;
}
