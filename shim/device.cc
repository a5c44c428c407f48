// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/device.h"

#include <fmt/format.h>

namespace kz {

std::string Identity::stable_id() const {
  if (!serial.empty()) return "dsn-" + serial;
  std::string ids = fmt::format("{:04x}:{:04x}:{:04x}:{:04x}", vendor, device, subsystem_vendor, subsystem);
  return bdf ? fmt::format("slot-{}-{}", kz::to_string(*bdf), ids) : ids;
}

std::string_view to_string(ResetKind kind) {
  switch (kind) {
    case ResetKind::function:
      return "function";
    case ResetKind::device:
      return "device";
    case ResetKind::firmware:
      return "firmware";
  }
  return "unknown";
}

}  // namespace kz
