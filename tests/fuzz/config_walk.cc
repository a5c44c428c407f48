// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kz::fuzz_config_walk({data, size});
  return 0;
}
