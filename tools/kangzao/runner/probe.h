// SPDX-License-Identifier: GPL-2.0-or-later
// The device as the runner sees it: through children with a time limit, because opening a dead device can
// hang for ever. The children are `kangzao internal-probe|internal-health|internal-reopen|internal-recover
// --device URI`.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/kangzao/runner/process.h"

namespace kz {

struct ProbeResult {
  bool ok = false;
  std::string code;     // of the error: "usage", "not found", "busy" ...
  std::string text;     // one line
  nlohmann::json data;  // of a good answer
};

// Identity, driver, firmware, link: what goes into the journal's environment. Writes nothing to the device.
ProbeResult probe_device(const std::string& uri, const CaptureRules& rules = {},
                         std::chrono::milliseconds limit = std::chrono::seconds(20));
// Identify, NOP, small DMA, small matmul, as far as the device has them.
ProbeResult check_health(const std::string& uri, const CaptureRules& rules = {});
// Until the device comes up: open it again, then, only with `may_reset`, the ladder of function, firmware and
// device reset.
ProbeResult recover_device(const std::string& uri, bool may_reset, const CaptureRules& rules = {});

// The bodies of the children; they print one JSON document and return their exit status.
int probe_main(const std::string& uri);
int health_main(const std::string& uri);
int reopen_main(const std::string& uri);
int recover_main(const std::string& uri);

}  // namespace kz
