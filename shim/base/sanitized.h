// SPDX-License-Identifier: GPL-2.0-or-later
// Whether this build carries a sanitizer: it then does the same, several times slower. Only limits on speed
// and the size of a test's input may depend on it.
#pragma once

namespace kz {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace kz
