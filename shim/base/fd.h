// SPDX-License-Identifier: GPL-2.0-or-later
// Owning handles: file descriptors and mappings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "shim/base/units.h"

namespace kz {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();
  Fd dup() const;  // close-on-exec copy

 private:
  int fd_ = -1;
};

Fd make_eventfd(bool nonblocking);
// Adds `n` to an eventfd. A full counter counts as signalled. Throws Error otherwise.
void signal_eventfd(int fd, uint64_t n = 1);
// For one that another process holds as well and may have made blocking or full. A full counter is as good as
// signalled. Never throws.
void signal_shared_eventfd(int fd);
// Takes the count of a non-blocking eventfd; 0 when it was not signalled.
uint64_t drain_eventfd(int fd);
// A memfd of `size` bytes that no holder can shrink, or put more seals on; `fixed`: nor grow.
Fd make_memfd(const std::string& name, Bytes size, bool fixed = false);

// A MAP_SHARED mapping of a file range. offset is page-aligned.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, uint64_t offset, Bytes size, bool writable, const std::string& what);
  Mapping(Mapping&& o) noexcept : p_(std::exchange(o.p_, nullptr)), n_(std::exchange(o.n_, 0)) {}
  Mapping& operator=(Mapping&& o) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::byte* data() const { return p_; }
  size_t size() const { return n_; }
  std::span<std::byte> bytes() const { return {p_, n_}; }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  std::byte* p_ = nullptr;
  size_t n_ = 0;
};

}  // namespace kz
