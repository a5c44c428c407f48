// SPDX-License-Identifier: GPL-2.0-or-later
// Is somebody living on this device? Nothing destructive is done to one that carries a mounted file system,
// swap, the default route or the console.
#pragma once

#include <string>
#include <vector>

#include "shim/base/bdf.h"

namespace kz {

// Roots can be replaced by a test's own folders.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
  std::string dev = "/dev";
};

// "nvme0n1p2 is mounted on /", "eth0 carries the default route", ... Empty: nobody lives there.
std::vector<std::string> inhabitants(const Bdf& bdf, const SystemRoots& roots = {});

}  // namespace kz
