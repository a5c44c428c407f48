// SPDX-License-Identifier: GPL-2.0-or-later
// Lines for people about what the software TPU did: into a file, or nowhere.
#pragma once

#include <string>

#include "shim/base/fd.h"

namespace kz::softtpu {

class Log {
 public:
  Log() = default;  // nowhere
  // Appends to the file. Throws Error.
  explicit Log(const std::string& path);
  // "2026-01-31T12:00:00.123 text". Errors of writing are dropped: the device matters more than its log.
  void line(const std::string& text) const;

 private:
  Fd fd_;
};

}  // namespace kz::softtpu
