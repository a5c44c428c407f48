// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "shim/base/error.h"

namespace kz::softtpu {

namespace {

constexpr std::chrono::milliseconds tick{10};

Fd make_timer() {
  Fd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!fd) throw_errno("create", "timer");
  itimerspec spec{};
  spec.it_interval.tv_nsec = spec.it_value.tv_nsec = tick / std::chrono::nanoseconds(1);
  if (::timerfd_settime(fd.get(), 0, &spec, nullptr) != 0) throw_errno("start", "timer");
  return fd;
}

}  // namespace

Server::Client::Client(Fd socket, int wake, Device& device)
    : fd(std::move(socket)), channel(fd.get(), wake), session(device, channel) {}

Server::Server(const ServerOptions& options, Device& device, FaultBoard& faults, const Log& log)
    : options_(options),
      device_(device),
      log_(log),
      control_(device, faults, state_),
      script_(options.script),
      listener_(options.socket),
      wake_(make_eventfd(true)),
      timer_(make_timer()) {
  if (!options.control.empty()) control_listener_.emplace(options.control);
  device_.dma().on_quiet([fd = wake_.get()] { signal_eventfd(fd); });
}

Server::~Server() {
  client_.reset();  // its workers may still signal
  device_.dma().on_quiet(nullptr);
}

void Server::run(int stop_fd) {
  while (!done_ && !state_.quit) wait(stop_fd);
  // A quit gets its answer before the socket goes.
  for (auto& c : controls_) write_control(*c);
  if (client_) end_client("server stops");
}

bool Server::client_may_send() const {
  return !client_->session.backlogged() && client_->channel.waiting_bytes() < max_client_answer;
}

void Server::wait(int stop_fd) {
  std::vector<pollfd> fds = {{stop_fd, POLLIN, 0},        {wake_.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0},
                             {listener_.fd(), POLLIN, 0}, {-1, POLLIN, 0},          {-1, 0, 0}};
  if (control_listener_) fds[4].fd = control_listener_->fd();
  if (client_) {
    short write = client_->channel.waiting_bytes() > 0 ? POLLOUT : 0;
    fds[5] = {client_->fd.get(), static_cast<short>((client_may_send() ? POLLIN : 0) | POLLRDHUP | write), 0};
  }
  for (auto& c : controls_)
    fds.push_back({c->fd.get(), static_cast<short>(POLLIN | (c->out.empty() ? 0 : POLLOUT)), 0});
  if (::poll(fds.data(), fds.size(), 1000) < 0) {
    if (errno != EINTR) throw_errno("poll", "sockets");
    return;
  }
  if (fds[0].revents != 0) done_ = true;
  if (fds[1].revents != 0) drain_eventfd(wake_.get());
  if (client_ && (fds[1].revents != 0 || fds[5].revents != 0)) serve_client();
  if (fds[3].revents != 0) accept_client();
  for (size_t i = 0; i < controls_.size(); ++i) {  // those that were polled; new ones come behind
    short events = i + 6 < fds.size() ? fds[i + 6].revents : 0;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_control(*controls_[i]);
    if ((events & POLLOUT) != 0) write_control(*controls_[i]);
  }
  std::erase_if(controls_, [](const auto& c) { return c->dead; });
  if (fds[4].revents != 0) accept_control();
  if (fds[2].revents != 0) on_timer();
}

void Server::accept_client() {
  Fd fd = listener_.accept();
  if (!fd) return;
  // The last client may have died between the poll and now.
  if (client_ && peer_closed(client_->fd.get())) end_client("disconnected");
  if (client_) {
    log_.line("second client refused");
    return;
  }
  if (!done_) client_ = std::make_unique<Client>(std::move(fd), wake_.get(), device_);
}

void Server::serve_client() {
  try {
    client_->session.resume();
    if (!client_->channel.flush()) return end_client("disconnected");
    // Bounded, so that a client that floods us cannot starve the control socket and the clock.
    for (int round = 0; round < 256 && client_may_send(); ++round) {
      auto got = receive_now(client_->fd.get(), client_->session.room());
      if (got.closed) return end_client("disconnected");
      if (got.bytes == 0) break;
      client_->session.received(got.bytes, std::move(got.fds));
      after_messages();
    }
    if (!client_may_send() && peer_closed(client_->fd.get())) return end_client("disconnected");
  } catch (const Error& e) {
    if (e.code() != Errc::protocol) throw;
    ++state_.protocol_errors;
    client_->channel.flush();
    end_client(e.what());
  }
}

void Server::after_messages() {
  if (state_.client || !client_->session.negotiated()) return;
  state_.client = state_.client_came = true;
  ++state_.clients;
  script_.start(client_->since);
  log_.line("client connected");
}

void Server::end_client(const std::string& why) {
  client_.reset();
  log_.line("client gone: " + why);
  if (state_.client && options_.one_client) done_ = true;
  state_.client = false;
}

void Server::accept_control() {
  Fd fd = control_listener_->accept();
  if (!fd || controls_.size() >= max_control_clients) return;
  controls_.push_back(std::make_unique<ControlClient>());
  controls_.back()->fd = std::move(fd);
}

void Server::read_control(ControlClient& c) {
  std::byte chunk[4096];
  auto got = receive_now(c.fd.get(), chunk);  // descriptors sent along are closed
  c.in.append(reinterpret_cast<const char*>(chunk), got.bytes);
  answer_lines(c);
  if (c.in.size() > max_control_line) {
    c.out += "{\"error\": \"a request has at most 65536 bytes\"}\n";
    c.in.clear();
    write_control(c);
    c.dead = true;
  }
  write_control(c);
  if (got.closed) c.dead = true;
}

void Server::answer_lines(ControlClient& c) {
  for (size_t end; (end = c.in.find('\n')) != std::string::npos;) {
    std::string line = c.in.substr(0, end);
    c.in.erase(0, end + 1);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string answer = control_.handle_line(line);
    log_.line("control: " + line + " -> " + answer.substr(0, answer.size() - 1));
    c.out += answer;
    if (c.out.size() > max_control_answer) c.dead = true;
    if (c.dead) return;
  }
}

void Server::write_control(ControlClient& c) {
  while (!c.out.empty()) {
    ssize_t n = ::send(c.fd.get(), c.out.data(), c.out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) c.dead = true;
    c.out.erase(0, n < 0 ? c.out.size() : static_cast<size_t>(n));
  }
}

void Server::on_timer() {
  uint64_t times;
  [[maybe_unused]] ssize_t n = ::read(timer_.get(), &times, sizeof times);
  device_.tick();
  auto now = Clock::now();
  while (const ScriptStep* step = script_.due(now)) {
    auto answer = control_.handle(step->request);
    log_.line(fmt::format("script line {}: {}", step->line, answer.dump()));
  }
  if (client_ && !client_->session.negotiated() && now - client_->since > options_.handshake_timeout)
    end_client("no VERSION in time");
}

}  // namespace kz::softtpu
