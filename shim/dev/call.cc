// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/call.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "shim/command.h"
#include "shim/status_error.h"

namespace kz::dev {
namespace {

const char* usual_remedy(int err) {
  switch (err) {
    case ENODEV:
      return "open it again when the driver has it back";
    case EIO:
      return "see the kernel log; reset it, or unbind and bind the driver";
    case ESTALE:
      return "open a new context and queue";
    case EPERM:
      return "run as root: it needs CAP_SYS_ADMIN";
    default:
      return "";
  }
}

const char* meaning(int err) {
  switch (err) {
    case ENODEV:
      return "the device is gone for the driver";
    case EIO:
      return "the device failed and the driver could not bring it back";
    case ESTALE:
      return "the device was reset or slept since it was opened";
    case EDQUOT:
      return "the quota of this open file (hbm_quota) is used up";
    default:
      return "";
  }
}

}  // namespace

int raw_call(int fd, unsigned long number, void* args) {
  int rc;
  do rc = ::ioctl(fd, number, args);
  while (rc < 0 && errno == EINTR);
  return rc < 0 ? -errno : 0;
}

bool pause_before(const Deadline& deadline) {
  if (deadline.passed()) return false;
  ::poll(nullptr, 0, 2);
  return true;
}

Errc code_of_call(int err, uint32_t status) {
  switch (status) {
    case KZ_ST_OK:
      break;
    case KZ_ST_NO_MEMORY:
    case KZ_ST_NO_CONTEXT:
      return Errc::no_memory;
    default:
      return Errc::status;
  }
  switch (err) {
    case ENODEV:
    case EIO:
    case ESTALE:
      return Errc::gone;
    case EPERM:
    case EACCES:
      return Errc::permission;
    case EBUSY:
    case ENOSPC:  // all queues, contexts or handles are taken
      return Errc::busy;
    case ENOMEM:
    case EDQUOT:
      return Errc::no_memory;
    case ETIMEDOUT:
      return Errc::timeout;
    case EREMOTEIO:
      return Errc::status;
    case EINVAL:
    case E2BIG:
      return Errc::usage;
    case ENOTTY:
    case EOPNOTSUPP:
      return Errc::unsupported;
    default:
      return Errc::io;
  }
}

void throw_call(std::string operation, std::string target, int err, uint32_t status, std::string remedy) {
  std::string detail =
      status != KZ_ST_OK ? fmt::format("the device ended it with {}", to_string(static_cast<Status>(status)))
                         : std::string(meaning(err));
  if (remedy.empty() && status == KZ_ST_OK) remedy = usual_remedy(err);
  ErrorInfo info{code_of_call(err, status), std::move(operation), std::move(target),
                 std::move(detail),         std::move(remedy),    err};
  if (status != KZ_ST_OK) throw StatusError(static_cast<Status>(status), std::move(info));
  throw Error(std::move(info));
}

}  // namespace kz::dev
