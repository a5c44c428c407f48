// SPDX-License-Identifier: GPL-2.0-or-later
// Cuts the byte stream of a vfio-user socket into messages. No sockets in here, so that a fuzzer can drive
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user {

// Descriptors that one message may bring; the rest is closed at once.
inline constexpr size_t max_received_fds = 64;

struct Incoming {
  Header header{};
  std::vector<std::byte> payload;
  std::vector<Fd> fds;  // whoever does not take them closes them

  bool is_reply() const { return (header.flags & flag_type_mask) == flag_reply; }
  // The payload's bytes from `offset` as a structure. Throws Error(protocol) naming `what` when there are too
  // few.
  template <class T>
  T as(const char* what, size_t offset = 0) const {
    T value;
    if (offset > payload.size() || payload.size() - offset < sizeof value)
      throw Error({Errc::protocol, "read", what, "the message is too short", "", 0});
    std::memcpy(&value, payload.data() + offset, sizeof value);
    return value;
  }
};

// Asks for exactly the bytes that may come next: descriptors travel with the first byte of their message and
// must not be read together with the tail of the message before.
class Stream {
 public:
  std::span<std::byte> room();  // never empty
  // `n` <= room().size() bytes arrived there, with `fds`. Returns a whole message as soon as there is one.
  // Throws Error(protocol) for a header whose size cannot be: the stream has no next message then.
  std::optional<Incoming> took(size_t n, std::vector<Fd> fds);

 private:
  std::array<std::byte, sizeof(Header)> head_{};
  Incoming message_;
  size_t have_ = 0;
};

}  // namespace kz::vfio_user
