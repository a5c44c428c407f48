// SPDX-License-Identifier: GPL-2.0-or-later
// The main loop of the software TPU: the vfio-user socket with its one client, the control socket, and the 10
// ms clock.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "tools/softtpu/control.h"
#include "tools/softtpu/device.h"
#include "tools/softtpu/log.h"
#include "tools/softtpu/script.h"
#include "tools/softtpu/session.h"
#include "tools/softtpu/socket.h"

namespace kz::softtpu {

struct ServerOptions {
  std::string socket;
  std::string control;  // empty: no control socket
  bool one_client = false;
  std::vector<ScriptStep> script;
  std::chrono::milliseconds handshake_timeout{5000};  // a connection without VERSION is dropped after it
};

class Server {
 public:
  // Listens from now on. Throws Error.
  Server(const ServerOptions& options, Device& device, FaultBoard& faults, const Log& log);
  ~Server();
  Server(const Server&) = delete;

  // Serves until `stop_fd` becomes readable, a quit request, or, with one_client, the first client has left.
  void run(int stop_fd);

 private:
  struct Client {
    Client(Fd socket, int wake, Device& device);
    Fd fd;
    SocketChannel channel;
    Session session;
    Clock::time_point since = Clock::now();
  };
  struct ControlClient {
    Fd fd;
    std::string in, out;
    bool dead = false;
  };
  static constexpr size_t max_control_clients = 16;
  static constexpr size_t max_control_line = 64 << 10;
  static constexpr size_t max_control_answer = 1 << 20;  // waiting for a client that does not read
  static constexpr size_t max_client_answer = 4 << 20;   // beyond it no more is read from the client

  void wait(int stop_fd);
  bool client_may_send() const;
  void accept_client();
  void serve_client();
  void after_messages();
  void end_client(const std::string& why);
  void accept_control();
  void read_control(ControlClient& c);
  void write_control(ControlClient& c);
  void answer_lines(ControlClient& c);
  void on_timer();

  ServerOptions options_;
  Device& device_;
  const Log& log_;
  ServerState state_;
  Control control_;
  ScriptPlayer script_;
  Listener listener_;
  std::optional<Listener> control_listener_;
  Fd wake_, timer_;
  std::unique_ptr<Client> client_;
  std::vector<std::unique_ptr<ControlClient>> controls_;
  bool done_ = false;
};

}  // namespace kz::softtpu
