// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/outcome.h"

#include <cerrno>

#include "shim/uapi/kz_ioctl.h"

namespace kz::dev {

Outcome outcome_of(int32_t res) {
  using enum Outcome::Kind;
  if (res == KZ_ST_LOST || res == KZ_ST_EXPIRED) return {lost, Status::lost, 0};
  if (res >= 0) return {completed, static_cast<Status>(res), 0};
  switch (-res) {
    case EBUSY:
    case EAGAIN:
    case EINTR:
    case ENOMEM:
      return {again, Status::ok, -res};
    case ESTALE:
    case ENODEV:
    case EIO:
    case ENOENT:  // the queue was destroyed below us
    case ECANCELED:
      return {lost, Status::lost, -res};
    default:
      return {refused, Status::ok, -res};
  }
}

}  // namespace kz::dev
