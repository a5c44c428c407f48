// SPDX-License-Identifier: GPL-2.0-or-later
// What the tests of the reference driver's calls share: the calls' shapes, memory that ends with its page,
// and how a wrong errno is told.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "shim/base/error.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/target.h"
#include "tests/kmod/user.h"

namespace kz::test {

// An ioctl with its structure's size, where its flags and reserved fields lie, and which flags it knows.
struct CallShape {
  const char* name;
  unsigned long number;
  uint32_t size, known_flags;
  bool needs_device;               // knows KZ_CALL_NOWAIT
  std::vector<uint32_t> reserved;  // offsets of 32-bit fields that must be 0
};

// All of them.
const std::vector<CallShape>& call_shapes();

// Memory whose last byte is followed by a page that nobody may touch.
class PageEnd {
 public:
  PageEnd() {
    void* p = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw_errno("allocate", "two pages");
    page_ = static_cast<char*>(p);
    ::mprotect(page_ + 4096, 4096, PROT_NONE);
  }
  ~PageEnd() { ::munmap(page_, 8192); }
  PageEnd(const PageEnd&) = delete;
  // `size` zeroed bytes up to the end, the rest of the page filled with 0x5a.
  char* last(size_t size) {
    std::memset(page_, 0x5a, 4096);
    std::memset(page_ + 4096 - size, 0, size);
    return page_ + 4096 - size;
  }
  bool untouched_before(const char* p) const {
    return std::all_of(static_cast<const char*>(page_), p, [](char c) { return c == 0x5a; });
  }

 private:
  char* page_;
};

inline void set32(char* at, uint32_t value) { std::memcpy(at, &value, sizeof value); }

// Fails the test at the caller's line where `got` is none of those wanted.
void expect_errno(const std::string& what, int got, std::initializer_list<int> wanted,
                  const char* file = __builtin_FILE(), int line = __builtin_LINE());

// The target; skips where it has not the reference driver's calls.
Target abi_target();

#define KZ_ABI_TEST(name, text, seconds) \
  KZ_TEST(kmod_abi, name, {.meaning = text, .level = 4, .labels = takes_driver_away(), .limit = seconds})

}  // namespace kz::test
