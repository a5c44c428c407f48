// SPDX-License-Identifier: GPL-2.0-or-later
// The three standard descriptors of a program that must go on when nobody reads it any more.
#pragma once

#include <string_view>

namespace kz {

// Call first in main(): a descriptor of 0, 1, 2 that came closed would be given to the next file that is
// opened, and what is printed would go there. Reading 0 finds its end, writing 1 or 2 fails with EBADF.
void occupy_standard_fds();

// Writes to standard error; that nobody takes it (closed, full, hung up) is no reason to end.
void say(std::string_view text) noexcept;

}  // namespace kz
