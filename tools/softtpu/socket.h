// SPDX-License-Identifier: GPL-2.0-or-later
// UNIX stream sockets of the software TPU: listening, receiving with descriptors, and a sender that never
// waits.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "tools/softtpu/remote_memory.h"

namespace kz::softtpu {

// A listening socket in the file system, mode 0600, removed with the object.
class Listener {
 public:
  // Takes the place of a socket that nobody listens on. Throws Error(busy) where somebody does, Error(usage)
  // for a path that is too long or something else than a socket, else what the system said.
  explicit Listener(const std::string& path);
  ~Listener();
  Listener(const Listener&) = delete;
  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // A new connection, non-blocking; empty when there is none.
  Fd accept() const;

 private:
  Fd fd_;
  std::string path_;
};

struct Received {
  size_t bytes = 0;
  std::vector<Fd> fds;
  bool closed = false;  // end of stream or a broken connection
};
// What is there now, without waiting, into `room`. Descriptors are close-on-exec.
Received receive_now(int fd, std::span<std::byte> room);
// The other end has closed, whatever is still unread.
bool peer_closed(int fd);

// Sends whole messages to a client over a socket. What the socket does not take at once waits here; nobody
// else does.
class SocketChannel final : public Channel {
 public:
  // `wake`: eventfd that is signalled when something begins to wait.
  SocketChannel(int fd, int wake) : fd_(fd), wake_(wake) {}
  bool send(const vfio_user::Header& header, std::span<const std::byte> head, std::span<const std::byte> data,
            std::span<const int> fds) override;
  // Sends what waits, as far as the socket takes it. False when the connection is broken.
  bool flush();
  size_t waiting_bytes() const;

 private:
  struct Part {
    std::vector<std::byte> bytes;
    std::vector<Fd> fds;
    size_t sent = 0;
  };
  bool push(std::deque<Part>& queue);

  const int fd_, wake_;
  mutable std::mutex m_;
  std::deque<Part> queue_;
  size_t waiting_ = 0;
  bool broken_ = false;
};

}  // namespace kz::softtpu
