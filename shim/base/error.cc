// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/base/error.h"

#include <cstring>

namespace kz {

std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::usage: return "usage";
    case Errc::not_found: return "not found";
    case Errc::permission: return "no permission";
    case Errc::busy: return "busy";
    case Errc::gone: return "device gone";
    case Errc::timeout: return "timeout";
    case Errc::io: return "i/o error";
    case Errc::protocol: return "protocol error";
    case Errc::unsupported: return "not supported";
    case Errc::no_memory: return "out of memory";
    case Errc::bad_data: return "unreadable";
    case Errc::status: return "command failed";
  }
  return "error";
}

static std::string compose(const ErrorInfo& i) {
  std::string s = i.operation;
  if (!i.target.empty()) s += (s.empty() ? "" : " ") + i.target;
  s += ": ";
  s += i.detail.empty() ? std::string(to_string(i.code)) : i.detail;
  if (i.sys_errno != 0) s += std::string(" (") + std::strerror(i.sys_errno) + ")";
  if (!i.remedy.empty()) s += "; " + i.remedy;
  return s;
}

Error::Error(ErrorInfo info) : std::runtime_error(compose(info)), info_(std::move(info)) {}

static Errc code_of(int err) {
  switch (err) {
    case EACCES:
    case EPERM: return Errc::permission;
    case ENOENT:
    case ENXIO:
    case ENODEV: return Errc::not_found;
    case EBUSY: return Errc::busy;
    case ENOMEM: return Errc::no_memory;
    case ETIMEDOUT: return Errc::timeout;
    case ECONNRESET:
    case EPIPE: return Errc::gone;
    default: return Errc::io;
  }
}

void throw_errno(std::string operation, std::string target, int err, std::string remedy) {
  throw Error({code_of(err), std::move(operation), std::move(target), std::string(to_string(code_of(err))),
               std::move(remedy), err});
}

}  // namespace kz
