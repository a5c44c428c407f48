// SPDX-License-Identifier: GPL-2.0-or-later
// Connection, requests and the receiver thread. What the requests mean is in
// client_device.cc.
#include "shim/vfio_user/client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "shim/base/error.h"

namespace kz::vfio_user {
namespace {

int poll_ms(Deadline deadline) {
  auto ms =
      std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
  return static_cast<int>(std::min<int64_t>(ms, 1 << 30));
}

Fd connect_to(const std::string &path, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Error({Errc::usage, "connect to", path,
                 "socket paths are limited to 107 bytes", "use a shorter path",
                 0});
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd)
    throw_errno("create", "socket");
  for (;;) {
    if (::connect(fd.get(), reinterpret_cast<sockaddr *>(&address),
                  sizeof address) == 0)
      return fd;
    int err = errno;
    if (err == EINTR)
      continue;
    if (err == EAGAIN &&
        !deadline.passed()) { // the backlog is full: somebody is being served
      ::poll(nullptr, 0, 1);
      continue;
    }
    if (err == EAGAIN)
      throw Error({Errc::busy, "connect to", path, "the server takes no client",
                   "", err});
    if (err == ENOENT)
      throw_errno("connect to", path, err,
                  "start the server that owns this socket first");
    if (err == ECONNREFUSED || err == ENOTSOCK)
      throw Error({Errc::not_found, "connect to", path, "nobody listens there",
                   "start the server again", err});
    throw_errno("connect to", path, err,
                err == EACCES ? "ask for write access to the socket" : "");
  }
}

std::vector<Fd> take_fds(msghdr &message) {
  std::vector<Fd> fds;
  for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

} // namespace

Client::Client(const std::string &path, std::chrono::nanoseconds timeout)
    : Client(connect_to(path, Deadline(timeout)), path, timeout) {}

Client::Client(Fd socket, std::string name, std::chrono::nanoseconds timeout)
    : name_(std::move(name)), timeout_(timeout), socket_(std::move(socket)),
      wake_(make_eventfd(true)) {
  receiver_ = std::thread([this] { receive_loop(); });
  try {
    negotiate();
  } catch (...) {
    signal_eventfd(wake_.get());
    receiver_.join();
    throw;
  }
}

Client::~Client() {
  signal_eventfd(wake_.get());
  receiver_.join();
}

void Client::negotiate() {
  nlohmann::json caps = {{"capabilities",
                          {{"max_msg_fds", max_fds},
                           {"max_data_xfer_size", max_data},
                           {"write_multiple", true}}}};
  std::string text = caps.dump();
  std::vector<std::byte> payload(sizeof(Version) + text.size() + 1);
  Version version{version_major, version_minor};
  std::memcpy(payload.data(), &version, sizeof version);
  std::memcpy(payload.data() + sizeof version, text.c_str(), text.size() + 1);
  Reply reply;
  try {
    reply = request(cmd_version, payload, {}, "negotiate version", timeout_);
  } catch (const Error &e) {
    if (e.code() != Errc::gone)
      throw;
    throw Error({Errc::busy, "connect to", name_,
                 "the server closed the connection at once",
                 "it has a client already; end that one first", 0});
  }
  Incoming in{{}, std::move(reply.payload), {}};
  auto theirs = in.as<Version>("version reply");
  if (theirs.major != version_major)
    throw Error(
        {Errc::protocol, "connect to", name_,
         fmt::format("server speaks vfio-user {}.{}, this is {}.{}",
                     theirs.major, theirs.minor, version_major, version_minor),
         "", 0});
  if (in.payload.size() > sizeof(Version)) {
    auto *begin =
        reinterpret_cast<const char *>(in.payload.data()) + sizeof(Version);
    std::string_view json(begin,
                          strnlen(begin, in.payload.size() - sizeof(Version)));
    auto parsed = nlohmann::json::parse(json, nullptr, false);
    if (parsed.is_object() && parsed.contains("capabilities") &&
        parsed["capabilities"].is_object()) {
      auto &limit = parsed["capabilities"]["max_data_xfer_size"];
      if (limit.is_number_unsigned())
        max_data_ = std::clamp<uint32_t>(limit.get<uint64_t>() & 0xffffffff, 8,
                                         max_data);
    }
  }
}

void Client::send(const Header &header, std::span<const std::byte> a,
                  std::span<const std::byte> b, std::span<const int> fds,
                  Deadline deadline) {
  std::lock_guard lock(send_mutex_);
  iovec parts[3] = {{const_cast<Header *>(&header), sizeof header},
                    {const_cast<std::byte *>(a.data()), a.size()},
                    {const_cast<std::byte *>(b.data()), b.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_fds)] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 3;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(c), fds.data(), sizeof(int) * fds.size());
  }
  while (message.msg_iovlen > 0) {
    ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd p{socket_.get(), POLLOUT, 0};
      if (deadline.passed())
        throw Error({Errc::timeout, "send to", name_,
                     "the server does not read", "", 0});
      ::poll(&p, 1, poll_ms(deadline));
      continue;
    }
    if (n < 0)
      throw Error(
          {Errc::gone, "send to", name_, "the server is gone", "", errno});
    message.msg_control = nullptr; // descriptors went with the first byte
    message.msg_controllen = 0;
    auto left = static_cast<size_t>(n);
    while (message.msg_iovlen > 0 && left >= message.msg_iov->iov_len) {
      left -= message.msg_iov->iov_len;
      ++message.msg_iov;
      --message.msg_iovlen;
    }
    if (message.msg_iovlen > 0) {
      message.msg_iov->iov_base =
          static_cast<char *>(message.msg_iov->iov_base) + left;
      message.msg_iov->iov_len -= left;
    }
  }
}

Reply Client::request(uint16_t command, std::span<const std::byte> payload,
                      std::span<const int> fds, const char *what,
                      std::chrono::nanoseconds timeout,
                      std::span<const std::byte> tail) {
  if (closed_)
    throw_gone(what);
  Deadline deadline(timeout);
  uint16_t id;
  {
    std::lock_guard lock(mutex_);
    do
      id = next_id_++;
    while (pending_.contains(id));
    pending_[id];
  }
  Header header{
      id, command,
      static_cast<uint32_t>(sizeof(Header) + payload.size() + tail.size()), 0,
      0};
  try {
    send(header, payload, tail, fds, deadline);
  } catch (...) {
    std::lock_guard lock(mutex_);
    pending_.erase(id);
    throw;
  }
  std::unique_lock lock(mutex_);
  auto &mine = pending_[id];
  changed_.wait_for(lock, deadline.left(),
                    [&] { return mine.done || closed_.load(); });
  Pending got = std::move(mine);
  pending_.erase(id);
  lock.unlock();
  if (!got.done && closed_)
    throw_gone(what);
  if (!got.done)
    throw Error({Errc::timeout, what, name_,
                 fmt::format("no reply in {}", to_string(timeout)), "", 0});
  if ((got.header.flags & flag_error) != 0)
    throw Error({Errc::io, what, name_, "the server refused", "",
                 static_cast<int>(got.header.error & 0xfff)});
  if (got.header.command != command)
    throw Error({Errc::protocol, what, name_,
                 fmt::format("the reply is to command {}", got.header.command),
                 "", 0});
  return std::move(got.reply);
}

void Client::throw_gone(const char *what) {
  std::lock_guard lock(mutex_);
  throw Error({Errc::gone, what, name_,
               close_reason_.empty() ? "the server is gone" : close_reason_, "",
               0});
}

void Client::close_all(const std::string &why) {
  std::lock_guard lock(mutex_);
  if (close_reason_.empty())
    close_reason_ = why;
  closed_ = true;
  changed_.notify_all();
}

void Client::receive_loop() {
  Stream stream;
  try {
    for (;;) {
      pollfd p[2] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (::poll(p, 2, -1) < 0 && errno != EINTR)
        throw_errno("poll", name_);
      if (p[1].revents != 0)
        break;
      if (p[0].revents == 0)
        continue;
      auto room = stream.room();
      iovec part{room.data(), room.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      // A message without payload leaves no room to fill only when it is
      // complete, so room is never empty here.
      ssize_t n =
          ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR))
        continue;
      if (n <= 0)
        return close_all("the server closed the connection");
      auto fds = take_fds(message);
      if (auto got = stream.took(static_cast<size_t>(n), std::move(fds)))
        dispatch(std::move(*got));
    }
    close_all("closed by us");
  } catch (const std::exception &e) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    close_all(e.what());
  }
}

void Client::dispatch(Incoming message) {
  if (!message.is_reply())
    return serve_dma(message);
  std::lock_guard lock(mutex_);
  auto it = pending_.find(message.header.id);
  if (it == pending_.end())
    return; // an answer to something that timed out
  it->second.done = true;
  it->second.header = message.header;
  it->second.reply = {std::move(message.payload), std::move(message.fds)};
  changed_.notify_all();
}

} // namespace kz::vfio_user
