// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

#include <memory>
#include <string>

#include "shim/tpu/transport.h"

namespace kz::tpu {

// The reference TPU behind a vfio-user socket. Throws as vfio_user::Client does, Error(unsupported) where the
// socket serves another device, Error(protocol) for a server whose regions are not those of the reference
// TPU, Error(gone) when its config space reads all ones.
std::unique_ptr<Transport> open_vfio_user(const std::string& socket, std::chrono::nanoseconds timeout);

}  // namespace kz::tpu
