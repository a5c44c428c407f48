// SPDX-License-Identifier: GPL-2.0-or-later
// The one error type that everything below the harness throws.
//
// An error names the operation, its target, the budget it had and what was reached, and where one is known the remedy.
// Libraries throw it; only the harness turns it into a verdict and only the CLI prints it.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kz {

enum class Errc {
  usage,        // the caller's words are wrong (URI, option, BDF)
  not_found,    // the named thing is not there
  permission,   // it is there, this user may not
  busy,         // somebody else holds it
  gone,         // the device was there and is lost (link down, all ones, peer closed)
  timeout,      // a deadline passed; the device may still answer
  io,           // the operating system refused or failed
  protocol,     // the other side broke the protocol
  unsupported,  // this device or backend does not have it
  no_memory,    // out of host or device memory
  bad_data,     // input that cannot be read (dump, journal, image)
  status,       // the device completed a command with a failure status
};

std::string_view to_string(Errc code);

struct ErrorInfo {
  Errc code = Errc::io;
  std::string operation;  // "map BAR", "wait for READY"
  std::string target;     // "0000:01:00.0 BAR4", "/run/x/sock"
  std::string detail;     // what was seen: "status 0x2 after 500 ms of 500 ms"
  std::string remedy;     // what the user can do, may be empty
  int sys_errno = 0;
};

class Error : public std::runtime_error {
 public:
  explicit Error(ErrorInfo info);
  const ErrorInfo& info() const { return info_; }
  Errc code() const { return info_.code; }

 private:
  ErrorInfo info_;
};

// Throws for a failed system call; the code follows errno (EACCES/EPERM permission, ENOENT/ENODEV not_found, EBUSY busy,
// ENOMEM no_memory, ETIMEDOUT timeout, else io).
[[noreturn]] void throw_errno(std::string operation, std::string target, int err = errno, std::string remedy = {});

}  // namespace kz
