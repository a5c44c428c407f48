// SPDX-License-Identifier: GPL-2.0-or-later
// A minimal vfio-user client over a real socket, for the unit tests of the software TPU's server.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu::rig {

using namespace vfio_user;

struct Folder {
  Folder() {
    char name[] = "/tmp/kz-server-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

inline Fd connect_to(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  path.copy(a.sun_path, sizeof a.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0)
      << path << ": " << strerror(errno);
  timeval limit{10, 0};  // no test hangs
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

inline void send_all(const Fd& fd, std::span<const std::byte> bytes, std::span<const int> fds = {}) {
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
  if (!fds.empty()) {
    msg.msg_control = control;
    msg.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  while (iov.iov_len > 0) {
    ssize_t n = ::sendmsg(fd.get(), &msg, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server may have closed already
    iov.iov_base = static_cast<char*>(iov.iov_base) + n;
    iov.iov_len -= static_cast<size_t>(n);
    msg.msg_control = nullptr;
    msg.msg_controllen = 0;
  }
}

inline bool recv_exactly(const Fd& fd, std::span<std::byte> out, std::vector<Fd>* fds = nullptr) {
  while (!out.empty()) {
    iovec iov{out.data(), out.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)];
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    ssize_t n = ::recvmsg(fd.get(), &msg, MSG_CMSG_CLOEXEC);
    if (n <= 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c))
      for (size_t i = 0; fds != nullptr && i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int got;
        std::memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
        fds->emplace_back(got);
      }
    out = out.subspan(static_cast<size_t>(n));
  }
  return true;
}

// The other end closed within the time limit of the socket; what comes before is dropped.
inline bool closed_by_server(const Fd& fd) {
  std::byte b[512];
  ssize_t n;
  do n = ::recv(fd.get(), b, sizeof b, 0);
  while (n > 0);
  return n == 0 || errno == ECONNRESET;
}

class Peer {
 public:
  explicit Peer(const std::string& path) : fd_(connect_to(path)) {}
  std::optional<Sent> call(uint16_t command, const std::vector<std::byte>& payload,
                           std::vector<int> fds = {}) {
    Header h{id_++, command, static_cast<uint32_t>(sizeof h + payload.size()), 0, 0};
    send_all(fd_, bytes_of(h) + payload, fds);
    return receive();
  }
  std::optional<Sent> receive() {
    Sent s;
    if (!recv_exactly(fd_, std::as_writable_bytes(std::span(&s.header, 1)), &s.fds)) return std::nullopt;
    s.payload.resize(s.header.size - sizeof(Header));
    if (!recv_exactly(fd_, s.payload)) return std::nullopt;
    return s;
  }
  bool negotiate() {
    auto r = call(cmd_version, bytes_of(Version{0, 1}) +
                                   bytes_of(std::string(R"({"capabilities":{"max_msg_fds":16}})"), true));
    return r && r->ok();
  }
  uint32_t reg(uint32_t offset) {
    auto r = call(cmd_region_read, bytes_of(RegionAccess{offset, 0, 4}));
    return r && r->ok() ? r->as<uint32_t>(sizeof(RegionAccess)) : 0;
  }
  bool write(uint32_t region, uint64_t offset, uint32_t value) {
    auto r = call(cmd_region_write, bytes_of(RegionAccess{offset, region, 4}) + bytes_of(value));
    return r && r->ok();
  }
  void bring_up() {
    write(region_config, cfg::command, cfg::command_memory | cfg::command_master);
    write(0, KZ_REG_CTRL, KZ_CTRL_ENABLE);
    EXPECT_TRUE(Client::eventually([&] { return (reg(KZ_REG_STATUS) & KZ_STATUS_READY) != 0; }));
  }
  const Fd& fd() const { return fd_; }
  void close() { fd_.reset(); }

 private:
  Fd fd_;
  uint16_t id_ = 1;
};

}  // namespace kz::softtpu::rig
