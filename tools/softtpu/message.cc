// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/message.h"

#include <fmt/format.h>

#include <utility>

#include "shim/base/error.h"

namespace kz::softtpu {

using vfio_user::Header;

std::span<std::byte> MessageStream::room() {
  if (have_ < sizeof(Header)) return std::span(head_).subspan(have_);
  return std::span(message_.payload).subspan(have_ - sizeof(Header));
}

void MessageStream::check_header() const {
  const Header& h = message_.header;
  auto refuse = [&](const std::string& what) {
    throw Error({Errc::protocol,
                 "read vfio-user message",
                 fmt::format("id {} command {}", h.id, h.command),
                 what,
                 {}});
  };
  if (h.size < sizeof(Header)) refuse(fmt::format("size {} is less than a header", h.size));
  if (h.size > vfio_user::max_message)
    refuse(fmt::format("size {} is beyond {}", h.size, vfio_user::max_message));
  if ((h.flags & vfio_user::flag_type_mask) > vfio_user::flag_reply)
    refuse(fmt::format("type {}", h.flags & 0xf));
}

std::optional<Message> MessageStream::took(size_t n, std::vector<Fd> fds) {
  for (Fd& fd : fds)
    if (message_.fds.size() < max_received_fds) message_.fds.push_back(std::move(fd));
  bool in_header = have_ < sizeof(Header);
  have_ += n;
  if (have_ < sizeof(Header)) return std::nullopt;
  if (in_header) {
    std::memcpy(&message_.header, head_.data(), sizeof(Header));
    check_header();
    message_.payload.resize(message_.header.size - sizeof(Header));
  }
  if (have_ < message_.header.size) return std::nullopt;
  have_ = 0;
  return std::exchange(message_, Message{});
}

}  // namespace kz::softtpu
