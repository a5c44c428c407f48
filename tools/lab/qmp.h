// SPDX-License-Identifier: GPL-2.0-or-later
// QEMU's machine protocol, one client (QEMU docs/interop/qmp-spec.rst). Every call has a deadline.
#pragma once

#include <deque>
#include <nlohmann/json.hpp>
#include <string>

#include "shim/base/fd.h"
#include "shim/base/units.h"

namespace kz::lab {

class Qmp {
 public:
  // An end of a socket pair whose other end QEMU has as a monitor.
  explicit Qmp(Fd connected) : fd_(std::move(connected)) {}
  // A monitor socket that QEMU listens on. Throws Error(not_found, io).
  static Qmp connect(const std::string& socket);

  // Reads the greeting and leaves negotiation mode. Throws Error(gone, timeout, protocol), here and below.
  void greet(Deadline deadline);
  // The command's "return". Throws Error(status) with QEMU's own words.
  nlohmann::json execute(const std::string& command, const nlohmann::json& arguments, Deadline deadline);
  // A command of the human monitor; what it prints. Throws Error(status) where it prints an error.
  std::string monitor(const std::string& line, Deadline deadline);
  // Waits up to `wait` for events, and takes them. Never throws: a closed connection has none.
  std::deque<nlohmann::json> events(std::chrono::milliseconds wait);
  bool closed() const { return closed_; }

 private:
  nlohmann::json next(Deadline deadline);
  bool fill(std::chrono::nanoseconds wait);
  bool take_line(nlohmann::json& out);

  Fd fd_;
  std::string buffer_;
  std::deque<nlohmann::json> events_;
  bool closed_ = false;
  int id_ = 0;
};

}  // namespace kz::lab
