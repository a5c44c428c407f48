// SPDX-License-Identifier: GPL-2.0-or-later
// Files of /proc and /sys: short, of no length known before, and sometimes refused.
#pragma once

#include <string>
#include <string_view>

namespace kz::test {

// All of it, at most `limit` bytes; "" where it cannot be read. `error` gets 0 or errno.
std::string text_file(const std::string& path, int* error = nullptr, size_t limit = 8 << 20);
// The same without the last line end.
std::string value_of(const std::string& path);
// One write() call. 0 or -errno.
int write_file(const std::string& path, std::string_view text);
bool exists(const std::string& path);

}  // namespace kz::test
