// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/vfio_user/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "shim/base/error.h"
#include "shim/vfio_user/stream.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user {
namespace {

int poll_ms(const Deadline& deadline) {
  auto ms = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
  return static_cast<int>(std::min<int64_t>(ms, 60'000));
}

[[noreturn]] void refused(const std::string& path, int err) {
  if (err == ENOENT || err == ENOTDIR)
    throw Error({Errc::not_found, "connect to", path, "there is no such socket",
                 "start the server first, or check the path", err});
  struct stat st {};
  bool no_socket = ::stat(path.c_str(), &st) == 0 && !S_ISSOCK(st.st_mode);
  if (no_socket || err == ENOTSOCK || err == EPROTOTYPE)
    throw Error(
        {Errc::not_found, "connect to", path, "it is not a stream socket", "name the server's socket", err});
  if (err == ECONNREFUSED)
    throw Error({Errc::not_found, "connect to", path, "nobody listens there any more",
                 "start the server again", err});
  if (err == EAGAIN)
    throw Error(
        {Errc::busy, "connect to", path, "the server takes no client", "end the one that it has", err});
  throw_errno(
      "connect to", path, err,
      err == EACCES || err == EPERM ? "ask the socket's owner for write access, or run as that user" : "");
}

std::vector<Fd> take_fds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

void attach_fds(msghdr& message, std::span<const int> fds, std::span<char> control) {
  if (fds.empty()) return;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
}

// Drops the first `n` bytes from the list.
void advance(msghdr& message, size_t n) {
  while (message.msg_iovlen > 0 && n >= message.msg_iov->iov_len) {
    n -= message.msg_iov->iov_len;
    ++message.msg_iov;
    --message.msg_iovlen;
  }
  if (message.msg_iovlen == 0) return;
  message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + n;
  message.msg_iov->iov_len -= n;
}

}  // namespace

Fd connect_to(const std::string& path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Error(
        {Errc::usage, "connect to", path, "socket paths are limited to 107 bytes", "use a shorter path", 0});
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("create", "socket");
  for (;;) {
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    // EAGAIN: the backlog is full, somebody is being served.
    if (errno != EINTR && (errno != EAGAIN || deadline.passed())) refused(path, errno);
    ::poll(nullptr, 0, 1);
  }
}

void send_all(int socket, std::span<const std::span<const std::byte>> parts, std::span<const int> fds,
              Deadline deadline, const std::string& peer, bool& begun) {
  std::array<iovec, 4> list{};
  size_t n = 0;
  for (auto part : parts) list.at(n++) = {const_cast<std::byte*>(part.data()), part.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * max_fds)> control{};
  msghdr message{};
  message.msg_iov = list.data();
  message.msg_iovlen = n;
  attach_fds(message, fds, control);
  advance(message, 0);
  while (message.msg_iovlen > 0) {
    ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      begun = true;
      message.msg_control = nullptr;  // descriptors went with the first byte
      message.msg_controllen = 0;
      advance(message, static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      if (deadline.passed())
        throw Error({Errc::timeout, "send to", peer,
                     "the server did not read for " + to_string(deadline.budget()), "", 0});
      pollfd p{socket, POLLOUT, 0};
      ::poll(&p, 1, poll_ms(deadline));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      throw Error({Errc::gone, "send to", peer, "the server closed the connection", "", errno});
    } else if (errno != EINTR) {
      throw_errno("send to", peer);
    }
  }
}

Received receive(int socket, std::span<std::byte> room) {
  iovec part{room.data(), room.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * max_received_fds)> control;
  for (;;) {
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n > 0) return {static_cast<size_t>(n), take_fds(message), false};
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return {0, {}, true};
    pollfd p{socket, POLLIN, 0};
    ::poll(&p, 1, -1);  // shutdown() of the socket ends it
  }
}

bool is_eventfd(int fd) {
  std::array<char, 64> name;
  std::string link = "/proc/self/fd/" + std::to_string(fd);
  ssize_t n = ::readlink(link.c_str(), name.data(), name.size());
  return n > 0 && std::string_view(name.data(), static_cast<size_t>(n)) == "anon_inode:[eventfd]";
}

bool is_safe_to_map(int fd, uint64_t offset, uint64_t size) {
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return false;
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  auto length = static_cast<uint64_t>(st.st_size);
  return offset <= length && size <= length - offset;
}

}  // namespace kz::vfio_user
