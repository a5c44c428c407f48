// SPDX-License-Identifier: GPL-2.0-or-later
// The host a run ran on: what compare() looks at first when verdicts change.
#pragma once

#include <nlohmann/json.hpp>

namespace kz {

// {"kernel", "distribution", "cpu", "cpus", "memory_mib", "memlock_kib", "hypervisor", "kangzao"}
nlohmann::json host_environment();

}  // namespace kz
