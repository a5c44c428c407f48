// SPDX-License-Identifier: GPL-2.0-or-later
// vfio-user messages out of a byte stream: pure, no sockets. Source: QEMU docs/interop/vfio-user.rst,
// "Header".
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "shim/base/fd.h"
#include "shim/vfio_user/wire.h"

namespace kz::softtpu {

struct Message {
  vfio_user::Header header{};
  std::vector<std::byte> payload;  // what follows the header
  std::vector<Fd> fds;             // came beside it; those that nobody takes are closed with the message

  bool is_reply() const { return (header.flags & vfio_user::flag_type_mask) == vfio_user::flag_reply; }
  bool wants_reply() const { return (header.flags & vfio_user::flag_no_reply) == 0; }
  // The first bytes of the payload as a fixed structure; nothing when there are too few.
  template <class T>
  std::optional<T> as(size_t offset = 0) const {
    T value;
    if (offset > payload.size() || payload.size() - offset < sizeof value) return std::nullopt;
    std::memcpy(&value, payload.data() + offset, sizeof value);
    return value;
  }
};

// Cuts a stream into messages. It asks for exactly the bytes that it may take next, so that descriptors,
// which travel with the first byte of a message, never get attached to the wrong one.
class MessageStream {
 public:
  // Where the next bytes belong. Never empty.
  std::span<std::byte> room();
  // `n` bytes (<= room().size()) were put there and `fds` came with them. Returns the message once it is
  // whole. Throws Error(protocol) when the header makes no sense: there is no way to find the next message in
  // such a stream.
  std::optional<Message> took(size_t n, std::vector<Fd> fds);
  // In the middle of a message?
  bool partial() const { return have_ != 0; }

 private:
  void check_header() const;

  std::array<std::byte, sizeof(vfio_user::Header)> head_{};
  Message message_;
  size_t have_ = 0;  // bytes of header and payload so far
};

// Descriptors that one message may bring; the rest is closed.
inline constexpr size_t max_received_fds = 32;

}  // namespace kz::softtpu
