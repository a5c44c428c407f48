// SPDX-License-Identifier: GPL-2.0-or-later
#pragma once

namespace kz {
inline constexpr const char* version = KZ_VERSION;  // from CMakeLists.txt
}
