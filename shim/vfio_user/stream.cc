// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/vfio_user/stream.h"

#include <fmt/format.h>

#include <utility>

namespace kz::vfio_user {

std::span<std::byte> Stream::room() {
  if (have_ < head_.size()) return std::span(head_).subspan(have_);
  return std::span(message_.payload).subspan(have_ - head_.size());
}

std::optional<Incoming> Stream::took(size_t n, std::vector<Fd> fds) {
  for (Fd& fd : fds)
    if (message_.fds.size() < max_received_fds) message_.fds.push_back(std::move(fd));
  bool in_head = have_ < head_.size();
  have_ += n;
  if (in_head && have_ == head_.size()) {
    std::memcpy(&message_.header, head_.data(), head_.size());
    uint32_t size = message_.header.size;
    if (size < sizeof(Header) || size > max_message)
      throw Error({Errc::protocol, "read", "vfio-user message", fmt::format("its header says {} bytes", size),
                   "", 0});
    message_.payload.resize(size - sizeof(Header));
  }
  if (have_ < head_.size() || have_ < message_.header.size) return std::nullopt;
  have_ = 0;
  return std::exchange(message_, {});
}

}  // namespace kz::vfio_user
