// SPDX-License-Identifier: GPL-2.0-or-later
// Does the math library compute right on this processor? OpenBLAS picks a kernel by processor model and has
// picked wrong ones for models that it did not know.
#pragma once

#include <string>

namespace kz::softtpu {

// Products of several odd shapes against a plain triple loop in double precision. Empty when right, else what
// was wrong.
std::string check_blas();

}  // namespace kz::softtpu
