// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/qmp.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "shim/base/error.h"

namespace kz::lab {
using nlohmann::json;

Qmp Qmp::connect(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw Error({Errc::usage, "connect to", path, "the path is too long for a socket", "", 0});
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("create", "socket");
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw_errno("connect to", path, errno == ECONNREFUSED ? ENOENT : errno, "is the guest running?");
  return Qmp(std::move(fd));
}

bool Qmp::take_line(json& out) {
  auto end = buffer_.find('\n');
  if (end == std::string::npos) return false;
  out = json::parse(buffer_.substr(0, end), nullptr, false);
  buffer_.erase(0, end + 1);
  return true;
}

bool Qmp::fill(std::chrono::nanoseconds wait) {
  pollfd p{fd_.get(), POLLIN, 0};
  if (closed_ || ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count())) <= 0) return false;
  char chunk[4096];
  ssize_t n = ::read(fd_.get(), chunk, sizeof chunk);
  if (n <= 0 && errno != EINTR) closed_ = true;
  if (n > 0) buffer_.append(chunk, static_cast<size_t>(n));
  return n > 0;
}

json Qmp::next(Deadline deadline) {
  for (json out;;) {
    if (take_line(out)) {
      if (out.is_discarded()) throw Error({Errc::protocol, "read", "QEMU's monitor", "a line is no JSON", "", 0});
      return out;
    }
    if (closed_) throw Error({Errc::gone, "read", "QEMU's monitor", "QEMU ended", "", 0});
    if (deadline.passed())
      throw Error({Errc::timeout, "wait for", "QEMU's monitor", "no answer within " + to_string(deadline.budget()), "", 0});
    fill(std::min<std::chrono::nanoseconds>(deadline.left(), 200ms));
  }
}

void Qmp::greet(Deadline deadline) {
  while (!next(deadline).contains("QMP")) {
  }
  execute("qmp_capabilities", json::object(), deadline);
}

json Qmp::execute(const std::string& command, const json& arguments, Deadline deadline) {
  const int id = ++id_;
  std::string line = json{{"execute", command}, {"arguments", arguments}, {"id", id}}.dump() + "\n";
  for (size_t at = 0; at < line.size();) {
    ssize_t n = ::send(fd_.get(), line.data() + at, line.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      closed_ = true;
      throw Error({Errc::gone, command, "QEMU", "QEMU ended", "", errno});
    }
    at += static_cast<size_t>(n);
  }
  for (;;) {
    json answer = next(deadline);
    if (answer.contains("event")) {
      events_.push_back(std::move(answer));
      continue;
    }
    if (answer.value("id", -1) != id) continue;
    if (answer.contains("error"))
      throw Error({Errc::status, command, "QEMU", answer["error"].value("desc", "an error without words"), "", 0});
    return answer.value("return", json());
  }
}

std::string Qmp::monitor(const std::string& line, Deadline deadline) {
  json said = execute("human-monitor-command", {{"command-line", line}}, deadline);
  std::string text = said.is_string() ? said.get<std::string>() : "";
  while (!text.empty() && std::strchr("\r\n", text.back()) != nullptr) text.pop_back();
  if (text.starts_with("Error:") || text.starts_with("unknown command") || text.find("invalid ") != std::string::npos)
    throw Error({Errc::status, "monitor", fmt::format("'{}'", line), text, "", 0});
  return text;
}

std::deque<json> Qmp::events(std::chrono::milliseconds wait) {
  json line;
  while (events_.empty() && fill(wait)) {
    while (take_line(line))
      if (line.is_object() && line.contains("event")) events_.push_back(line);
  }
  return std::exchange(events_, {});
}

}  // namespace kz::lab
