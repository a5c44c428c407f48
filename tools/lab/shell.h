// SPDX-License-Identifier: GPL-2.0-or-later
// A person at a guest's serial console.
#pragma once

#include "tools/lab/guest.h"

namespace kz::lab {

// Joins standard input and output with the guest's console until the guest is off, Ctrl-] is typed, the
// deadline passes, or a signal comes. An end of standard input that is no terminal is no end of the guest.
// Returns how the guest was then.
Guest::State talk(Guest& guest, Deadline deadline);

}  // namespace kz::lab
