// SPDX-License-Identifier: GPL-2.0-or-later
// A vfio-user server by hand for the tests of the client: a script runs on its own thread over one end of a
// socketpair. It reads and writes with plain system calls, so that a mistake of the client's own socket code
// shows.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shim/base/fd.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user::peer {

using Buffer = std::vector<std::byte>;

template <class T>
Buffer bytes_of(const T& value) {
  Buffer b(sizeof value);
  std::memcpy(b.data(), &value, sizeof value);
  return b;
}
inline Buffer text_of(const std::string& text) {
  Buffer b(text.size() + 1);
  std::memcpy(b.data(), text.c_str(), b.size());
  return b;
}
inline Buffer operator+(Buffer a, const Buffer& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
template <class T>
T as(const Buffer& b, size_t offset = 0) {
  T value{};
  if (b.size() >= offset + sizeof value) std::memcpy(&value, b.data() + offset, sizeof value);
  return value;
}

struct Got {
  Header header{};
  Buffer payload;
  std::vector<Fd> fds;
};

// The server's end. All waits end after ten seconds at the latest.
class End {
 public:
  explicit End(Fd socket) : socket_(std::move(socket)) {}
  void close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

  // The next message of the client; nothing when it closed.
  std::optional<Got> get() {
    Got got;
    if (!fill(&got.header, sizeof got.header, &got.fds)) return std::nullopt;
    got.payload.resize(got.header.size - sizeof got.header);
    if (!fill(got.payload.data(), got.payload.size(), nullptr)) return std::nullopt;
    return got;
  }
  void put_raw(const Buffer& bytes, const std::vector<int>& fds = {}) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
    }
    ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    for (size_t at = sent > 0 ? static_cast<size_t>(sent) : bytes.size(); at < bytes.size();) {
      ssize_t n = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }
  void put(uint16_t id, uint16_t command, uint32_t flags, const Buffer& payload,
           const std::vector<int>& fds = {}, uint32_t error = 0) {
    put_raw(
        bytes_of(Header{id, command, static_cast<uint32_t>(sizeof(Header) + payload.size()), flags, error}) +
            payload,
        fds);
  }
  void reply(const Got& to, const Buffer& payload = {}, const std::vector<int>& fds = {}) {
    put(to.header.id, to.header.command, flag_reply, payload, fds);
  }
  void refuse(const Got& to, uint32_t error) {
    put(to.header.id, to.header.command, flag_reply | flag_error, {}, {}, error);
  }
  // Answers the client's VERSION.
  void welcome(
      const std::string& json = R"({"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576}})") {
    if (auto hello = get()) reply(*hello, bytes_of(Version{version_major, version_minor}) + text_of(json));
  }
  // Until the client closes.
  void stay() {
    while (get()) {
    }
  }

 private:
  bool fill(void* to, size_t n, std::vector<Fd>* fds) {
    auto* p = static_cast<char*>(to);
    while (n > 0) {
      pollfd ready{socket_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 10000) != 1) return false;
      iovec part{p, n};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 32)];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      if (got <= 0) return false;
      for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
          if (fds != nullptr)
            fds->emplace_back(fd);
          else
            ::close(fd);
        }
      p += got;
      n -= static_cast<size_t>(got);
    }
    return true;
  }
  Fd socket_;
};

// Runs a script and joins it. Take the client's end first.
class Peer {
 public:
  explicit Peer(std::function<void(End&)> script) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    client_ = Fd(ends[0]);
    thread_ = std::thread([script = std::move(script), end = End(Fd(ends[1]))]() mutable { script(end); });
  }
  ~Peer() {
    client_.reset();
    thread_.join();
  }
  Fd take() { return std::move(client_); }

 private:
  Fd client_;
  std::thread thread_;
};

}  // namespace kz::vfio_user::peer
