// SPDX-License-Identifier: GPL-2.0-or-later
// Connection, requests and the receiver thread. What the requests mean is in client_device.cc.
#include "shim/vfio_user/client.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "shim/vfio_user/socket.h"

namespace kz::vfio_user {
namespace {

constexpr std::chrono::nanoseconds longest_request = 5s;
constexpr std::chrono::nanoseconds answer_budget = 2s;  // for the server to take an answer to its own request

}  // namespace

Client::Client(const std::string& path, std::chrono::nanoseconds timeout)
    : Client(connect_to(path, Deadline(timeout)), path, timeout) {}

Client::Client(Fd socket, std::string name, std::chrono::nanoseconds timeout)
    : name_(std::move(name)), timeout_(timeout), socket_(std::move(socket)) {
  receiver_ = std::thread([this] { receive_loop(); });
  try {
    negotiate();
  } catch (...) {
    close();
    receiver_.join();
    throw;
  }
  timeout_ = std::min(timeout_, longest_request);
}

Client::~Client() {
  close();
  receiver_.join();
}

void Client::close() {
  end("the connection was closed by us");
  ::shutdown(socket_.get(), SHUT_RDWR);
}

void Client::negotiate() {
  nlohmann::json ours = {{"capabilities", {{"max_msg_fds", max_fds}, {"max_data_xfer_size", max_data}}}};
  std::string text = ours.dump();
  Version version{version_major, version_minor};
  try {
    agreement_ = decode_version(call({.command = cmd_version,
                                      .what = "negotiate the version with",
                                      .payload = std::as_bytes(std::span(&version, 1)),
                                      .tail = std::as_bytes(std::span(text.c_str(), text.size() + 1))}));
  } catch (const Error& e) {
    if (e.code() == Errc::gone)
      throw Error({Errc::busy, "connect to", name_, "the server closed the connection at once",
                   "it has a client already (end that one), or it does not speak vfio-user 0.1", 0});
    if (e.code() == Errc::timeout)
      throw Error({Errc::timeout, "connect to", name_, e.info().detail,
                   "is it a vfio-user server, and has it no other client?", 0});
    if (e.code() == Errc::io)
      throw Error({Errc::unsupported, "connect to", name_, "the server refused version 0.1",
                   "use a server that speaks vfio-user 0.1", e.info().sys_errno});
    throw;
  }
}

void Client::send(const Header& header, std::span<const std::byte> a, std::span<const std::byte> b,
                  std::span<const int> fds, Deadline deadline) {
  std::unique_lock lock(send_mutex_, std::defer_lock);
  if (!lock.try_lock_for(deadline.left()))
    throw Error({Errc::timeout, "send to", name_, "the server does not read", "", 0});
  std::span<const std::byte> parts[] = {std::as_bytes(std::span(&header, 1)), a, b};
  bool begun = false;
  try {
    send_all(socket_.get(), parts, fds, deadline, name_, begun);
  } catch (const Error& e) {
    // Half a message is out: there is no way back into step with the server.
    if (begun || e.code() == Errc::gone) {
      end(e.info().detail);
      ::shutdown(socket_.get(), SHUT_RDWR);
    }
    throw;
  }
}

uint16_t Client::enlist() {
  std::lock_guard lock(mutex_);
  if (pending_.size() > UINT16_MAX / 2)
    throw Error({Errc::busy, "send to", name_, "too many requests are outstanding", "", 0});
  while (pending_.contains(next_id_)) ++next_id_;
  pending_[next_id_];
  return next_id_++;
}

Incoming Client::call(const Request& r) {
  if (closed_) throw_gone(r.what);
  Deadline deadline(r.budget.value_or(timeout_));
  uint16_t id = enlist();
  Header header{id, r.command, static_cast<uint32_t>(sizeof(Header) + r.payload.size() + r.tail.size()), 0,
                0};
  try {
    send(header, r.payload, r.tail, r.fds, deadline);
  } catch (...) {
    std::lock_guard lock(mutex_);
    pending_.erase(id);
    throw;
  }
  return await(id, r, deadline);
}

Incoming Client::await(uint16_t id, const Request& r, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto& mine = pending_[id];
  changed_.wait_for(lock, deadline.left(), [&] { return mine.done || closed_.load(); });
  Pending got = std::move(mine);
  pending_.erase(id);
  lock.unlock();
  if (!got.done && closed_) throw_gone(r.what);
  if (!got.done)
    throw Error(
        {Errc::timeout, r.what, name_,
         fmt::format("no reply after {} of {}", to_string(deadline.elapsed()), to_string(deadline.budget())),
         "", 0});
  if ((got.reply.header.flags & flag_error) != 0) {
    int err = static_cast<int>(std::min<uint32_t>(got.reply.header.error, 4095));
    throw Error({Errc::io, r.what, name_, "the server refused", "", err});
  }
  if (got.reply.header.command != r.command)
    throw Error({Errc::protocol, r.what, name_,
                 fmt::format("the reply is to command {}", got.reply.header.command), "", 0});
  return std::move(got.reply);
}

void Client::throw_gone(const char* what) {
  std::lock_guard lock(mutex_);
  throw Error({Errc::gone, what, name_, close_reason_, "", 0});
}

void Client::end(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  close_reason_ = why;
  closed_ = true;
  changed_.notify_all();
}

void Client::receive_loop() {
  try {
    Stream stream;
    while (receive_some(stream)) {
    }
    end("the server closed the connection");
  } catch (const std::exception& e) {
    end(e.what());
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
}

bool Client::receive_some(Stream& stream) {
  Received got = receive(socket_.get(), stream.room());
  if (got.closed) return false;
  if (auto message = stream.took(got.bytes, std::move(got.fds))) dispatch(std::move(*message));
  return true;
}

void Client::dispatch(Incoming message) {
  if (!message.is_reply()) return serve(message);
  std::lock_guard lock(mutex_);
  auto it = pending_.find(message.header.id);
  if (it == pending_.end() || it->second.done) return;  // an answer to what timed out, or a second one
  it->second = {true, std::move(message)};
  changed_.notify_all();
}

void Client::serve(const Incoming& message) {
  auto answer = memory_.serve(message);
  if ((message.header.flags & flag_no_reply) != 0) return;
  Header header{message.header.id, message.header.command, 0, flag_reply, 0};
  if (answer.error != 0) {
    header.flags |= flag_error;
    header.error = static_cast<uint32_t>(answer.error);
  }
  header.size = static_cast<uint32_t>(sizeof header + answer.payload.size());
  send(header, answer.payload, {}, {}, Deadline(answer_budget));
}

}  // namespace kz::vfio_user
