// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/softtpu_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "shim/base/error.h"
#include "shim/base/fd.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

struct Option {
  std::string_view name, flag;
};
// "ecc=off" is the only switch; the rest pass their value on.
constexpr Option options[] = {
    {"hbm", "--hbm"},       {"geometry", "--geometry"},
    {"irq", "--irq"},       {"service-time", "--service-time"},
    {"seed", "--seed"},     {"queues", "--queues"},
    {"serial", "--serial"}, {"fw-version", "--fw-version"},
    {"log", "--log"},       {"script", "--script"}};

void add_option(const std::string &name, const std::string &value,
                std::vector<std::string> &args) {
  if (name == "ecc" && (value == "on" || value == "off")) {
    if (value == "off")
      args.push_back("--no-ecc");
    return;
  }
  for (const Option &o : options)
    if (o.name == name) {
      args.emplace_back(o.flag);
      args.push_back(value);
      return;
    }
  std::vector<std::string_view> known{"ecc=on|off"};
  for (const Option &o : options)
    known.push_back(o.name);
  throw Error({Errc::usage, "read device",
               fmt::format("softtpu:{}={}", name, value), "no such option",
               fmt::format("known: {}", fmt::join(known, ", ")), 0});
}

} // namespace

std::string find_softtpu() {
  std::vector<fs::path> places;
  if (const char *dir = std::getenv("KANGZAO_BIN_DIR"))
    places.emplace_back(dir);
  std::error_code ec;
  if (auto self = fs::read_symlink("/proc/self/exe", ec); !ec)
    places.push_back(self.parent_path());
  if (const char *path = std::getenv("PATH")) {
    std::istringstream in(path);
    for (std::string dir; std::getline(in, dir, ':');)
      places.emplace_back(dir);
  }
  for (const fs::path &dir : places)
    if (fs::path p = dir / "softtpu"; ::access(p.c_str(), X_OK) == 0)
      return p;
  throw Error({Errc::not_found, "find", "softtpu",
               "not beside this program and not on PATH",
               "build it, or name its folder in KANGZAO_BIN_DIR", 0});
}

SoftTpuProcess::SoftTpuProcess(const SoftTpuSpec &spec)
    : directory_(spec.directory) {
  std::vector<std::string> args{find_softtpu()};
  for (auto &[name, value] : spec.options)
    add_option(name, value, args);
  if (directory_.empty()) {
    std::string pattern =
        (fs::temp_directory_path() / "kz-softtpu-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr)
      throw_errno("create folder", pattern);
    directory_ = pattern;
    own_directory_ = true;
  }
  socket_ = directory_ + "/softtpu.sock";
  control_ = directory_ + "/softtpu.ctl";
  args.insert(args.end(), {"--socket", socket_, "--control", control_});
  args.insert(args.end(), spec.extra.begin(), spec.extra.end());

  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0)
    throw_errno("create", "pipe");
  Fd out(pipe_fds[0]), in(pipe_fds[1]);
  std::vector<char *> argv;
  for (auto &a : args)
    argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0)
    throw_errno("start", args[0]);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent)
      ::_exit(127); // the owner died before the line above
    // Its own group: Ctrl-C on the terminal ends the owner, which ends the
    // device in its own time.
    ::setpgid(0, 0);
    ::dup2(in.get(), STDOUT_FILENO);
    ::dup2(in.get(), STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  in.reset();
  try {
    wait_ready(out.get(), Deadline(spec.timeout));
  } catch (...) {
    stop();
    throw;
  }
}

void SoftTpuProcess::wait_ready(int out, Deadline deadline) {
  std::string text;
  char buffer[512];
  for (;;) {
    pollfd p{out, POLLIN, 0};
    int ready =
        ::poll(&p, 1,
               static_cast<int>(
                   std::chrono::ceil<std::chrono::milliseconds>(deadline.left())
                       .count()));
    if (ready == 0)
      throw Error({Errc::timeout, "start", "softtpu",
                   "it was not ready in " + to_string(deadline.budget()), "",
                   0});
    ssize_t n = ready > 0 ? ::read(out, buffer, sizeof buffer) : 0;
    if (n > 0)
      text.append(buffer, static_cast<size_t>(n));
    if (text.starts_with("ready ") ||
        text.find("\nready ") != std::string::npos)
      return;
    if (n == 0)
      break;
  }
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  std::string last = text.substr(text.rfind('\n') + 1);
  int status = 0;
  if (::waitpid(pid_, &status, 0) == pid_)
    pid_ = -1;
  bool usage = WIFEXITED(status) && WEXITSTATUS(status) == 2;
  throw Error({usage ? Errc::usage : Errc::io, "start", "softtpu",
               last.empty() ? "it ended at once" : last, "", 0});
}

bool SoftTpuProcess::running() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_)
    pid_ = -1;
  return pid_ > 0;
}

void SoftTpuProcess::stop() {
  if (running()) {
    ::kill(pid_, SIGTERM);
    Deadline grace(2s);
    while (running() && !grace.passed())
      ::poll(nullptr, 0, 5);
    if (running()) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  std::error_code ec;
  fs::remove(socket_, ec);
  fs::remove(control_, ec);
  if (own_directory_)
    fs::remove_all(directory_, ec);
}

SoftTpuProcess::~SoftTpuProcess() { stop(); }

} // namespace kz
