// SPDX-License-Identifier: GPL-2.0-or-later
// What a server sends to our client: any bytes.
#include "shim/vfio_user/decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kz::vfio_user::decode_everything(std::as_bytes(std::span(data, size)));
  return 0;
}
