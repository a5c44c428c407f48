// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "shim/base/error.h"
#include "tools/softtpu/message.h"

namespace kz::softtpu {

namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof a.sun_path)
    throw Error({Errc::usage, "listen", path, "a socket's path has 1 to 107 characters",
                 "use a shorter folder name"});
  std::memcpy(a.sun_path, path.data(), path.size());
  return a;
}

Fd new_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw_errno("create", "socket");
  return fd;
}

// Removes a socket that a dead process left.
void remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return;
  if (!S_ISSOCK(st.st_mode))
    throw Error({Errc::usage, "listen", path, "exists and is not a socket", "name another path"});
  Fd probe = new_socket();
  int rc = ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (rc == 0 || errno == EAGAIN)
    throw Error(
        {Errc::busy, "listen", path, "another program listens there", "stop it or name another path"});
  if (errno != ECONNREFUSED) throw_errno("probe", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_errno("remove stale socket", path);
}

constexpr size_t control_bytes = CMSG_SPACE(sizeof(int) * max_received_fds);

}  // namespace

Listener::Listener(const std::string& path) : fd_(new_socket()) {
  sockaddr_un address = address_of(path);
  remove_stale(path, address);
  ::fchmod(fd_.get(), 0600);  // the file gets the socket's mode: nobody can connect in between
  if (::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("bind", path);
  path_ = path;
  bool ready = ::chmod(path.c_str(), 0600) == 0 && ::listen(fd_.get(), 16) == 0;
  if (ready) return;
  int err = errno;
  ::unlink(path.c_str());
  throw_errno("listen", path, err);
}

Listener::~Listener() { ::unlink(path_.c_str()); }

Fd Listener::accept() const {
  int fd = ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  return Fd(fd);
}

Received receive_now(int fd, std::span<std::byte> room) {
  alignas(cmsghdr) std::array<char, control_bytes> control;
  iovec iov{room.data(), room.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  msg.msg_control = control.data();
  msg.msg_controllen = control.size();
  Received r;
  ssize_t n = ::recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) {
    r.closed = n == 0 || (errno != EAGAIN && errno != EINTR);
    return r;
  }
  r.bytes = static_cast<size_t>(n);
  for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int got;
      std::memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
      r.fds.emplace_back(got);
    }
  }
  return r;
}

bool peer_closed(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool SocketChannel::send(const vfio_user::Header& header, std::span<const std::byte> head,
                         std::span<const std::byte> data, std::span<const int> fds) {
  auto start = std::as_bytes(std::span(&header, 1));
  Part part;
  part.bytes.reserve(start.size() + head.size() + data.size());
  for (auto piece : {start, head, data}) part.bytes.insert(part.bytes.end(), piece.begin(), piece.end());
  for (int fd : fds) {
    int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) part.fds.emplace_back(copy);
  }
  std::lock_guard lock(m_);
  if (broken_) return false;
  waiting_ += part.bytes.size();
  queue_.push_back(std::move(part));
  bool ok = push(queue_);
  if (ok && !queue_.empty()) signal_eventfd(wake_);
  return ok;
}

bool SocketChannel::flush() {
  std::lock_guard lock(m_);
  return push(queue_);
}

size_t SocketChannel::waiting_bytes() const {
  std::lock_guard lock(m_);
  return waiting_;
}

bool SocketChannel::push(std::deque<Part>& queue) {
  while (!broken_ && !queue.empty()) {
    Part& part = queue.front();
    iovec iov{part.bytes.data() + part.sent, part.bytes.size() - part.sent};
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, control_bytes> control{};
    if (part.sent == 0 && !part.fds.empty()) {
      msg.msg_control = control.data();
      msg.msg_controllen = CMSG_SPACE(sizeof(int) * part.fds.size());
      cmsghdr* c = CMSG_FIRSTHDR(&msg);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * part.fds.size());
      for (size_t i = 0; i < part.fds.size(); ++i) {
        int fd = part.fds[i].get();
        std::memcpy(CMSG_DATA(c) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    ssize_t n = ::sendmsg(fd_, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n < 0) {
      broken_ = true;
      return false;
    }
    part.sent += static_cast<size_t>(n);
    waiting_ -= static_cast<size_t>(n);
    if (part.sent == part.bytes.size()) queue.pop_front();
  }
  return !broken_;
}

}  // namespace kz::softtpu
