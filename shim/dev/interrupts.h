// SPDX-License-Identifier: GPL-2.0-or-later
// Interrupts of the driver's vectors as the kernel counts them: their handlers are called kz0-0, kz0-1, ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kz::dev {

// From the text of /proc/interrupts: one count a vector, all processors together. Empty where none is the
// device's.
std::vector<uint64_t> parse_interrupts(std::string_view text, std::string_view kernel_name);

// Of this host; empty where it cannot be read.
std::vector<uint64_t> interrupt_counts_of(const std::string& kernel_name);

}  // namespace kz::dev
