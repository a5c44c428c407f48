// SPDX-License-Identifier: GPL-2.0-or-later
// The error of a command that the device ended with a failure status, for who wants to count by it.
#pragma once

#include <utility>

#include "shim/base/error.h"
#include "shim/command.h"

namespace kz {

class StatusError final : public Error {
 public:
  StatusError(Status status, ErrorInfo info) : Error(std::move(info)), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

}  // namespace kz
