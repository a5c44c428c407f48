// SPDX-License-Identifier: GPL-2.0-or-later
// FNV-1a, 64 bits: names and keys of caches. Not against anybody who wants collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace kz {

class Hash {
 public:
  // Pieces, not their concatenation: "a", "bc" is not "ab", "c".
  void add(std::string_view data) {
    for (unsigned char c : data) mix(c);
    mix(0xff);
  }
  uint64_t value() const { return value_; }

 private:
  void mix(unsigned char c) { value_ = (value_ ^ c) * 0x100000001b3ull; }
  uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace kz
