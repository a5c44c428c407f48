// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/softtpu_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shim/base/error.h"
#include "shim/base/text.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

constexpr auto stop_grace = 2s;
constexpr int exit_usage = 2;

// Options that pass their value on as --name; "ecc=off" is a switch.
constexpr std::string_view valued[] = {"hbm",        "geometry", "irq",     "service-time",
                                       "seed",       "queues",   "serial",  "script",
                                       "fw-version", "log",      "unmapped"};

// In the child: no descriptor of the parent but the three standard ones, and of signals only SIGTERM held
// back, until the program can clean up when it comes.
[[noreturn]] void become(char* const* argv, int output, int errors, pid_t parent) {
  sigset_t end;
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &end, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // the owner died before the line above
  ::setpgid(0, 0);  // Ctrl-C on the terminal ends the owner, which ends the device in its own time
  int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

std::vector<std::string> softtpu_arguments(const std::map<std::string, std::string>& options) {
  std::vector<std::string> args;
  for (const auto& [name, value] : options) {
    if (name == "ecc" && (value == "on" || value == "off")) {
      if (value == "off") args.emplace_back("--no-ecc");
      continue;
    }
    std::string target = fmt::format("'softtpu:{}={}'", name, value);
    if (name == "ecc") throw Error({Errc::usage, "read device", target, "ecc is on or off", "", 0});
    if (std::find(std::begin(valued), std::end(valued), name) == std::end(valued)) {
      std::vector<std::string> known(std::begin(valued), std::end(valued));
      known.emplace_back("ecc");
      auto near = near_matches(name, known);
      throw Error({Errc::usage, "read device", target, fmt::format("softtpu has no option '{}'", name),
                   near.empty() ? fmt::format("known: {}", fmt::join(known, ", "))
                                : fmt::format("did you mean {}=?", near.front()),
                   0});
    }
    args.push_back("--" + name);
    args.push_back(value);
  }
  return args;
}

std::string find_softtpu() {
  std::vector<fs::path> places;
  if (const char* dir = std::getenv("KANGZAO_BIN_DIR")) places.emplace_back(dir);
  std::error_code ec;
  if (auto self = fs::read_symlink("/proc/self/exe", ec); !ec) places.push_back(self.parent_path());
  if (const char* path = std::getenv("PATH")) {
    std::istringstream in(path);
    for (std::string dir; std::getline(in, dir, ':');) places.emplace_back(dir);
  }
  for (const fs::path& dir : places)
    if (fs::path p = dir / "softtpu"; ::access(p.c_str(), X_OK) == 0) return p;
  throw Error({Errc::not_found, "find", "softtpu", "not beside this program and not on PATH",
               "build it, or name its folder in KANGZAO_BIN_DIR", 0});
}

SoftTpuProcess::Folder::Folder(std::string given) : path(std::move(given)) {
  if (!path.empty()) return;
  std::error_code ec;
  fs::path temporary = fs::temp_directory_path(ec);  // one that is not there is named by mkdtemp
  if (const char* named = std::getenv("TMPDIR"); ec) temporary = named != nullptr ? named : "/tmp";
  path = (temporary / "kz-softtpu-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr)
    throw Error({Errc::io, "create folder", path, std::strerror(errno), "name a folder to write to in TMPDIR",
                 errno});
  own_ = true;
}

SoftTpuProcess::Folder::~Folder() {
  std::error_code ec;
  if (own_) fs::remove_all(path, ec);
}

SoftTpuProcess::SoftTpuProcess(const SoftTpuSpec& spec)
    : folder_((softtpu_arguments(spec.options), spec.directory)),
      socket_(folder_.path + "/softtpu.sock"),
      control_(folder_.path + "/softtpu.ctl"),
      errors_(folder_.path + "/softtpu.err") {
  std::vector<std::string> args{find_softtpu()};
  for (auto& a : softtpu_arguments(spec.options)) args.push_back(a);
  args.insert(args.end(), {"--socket", socket_, "--control", control_});
  if (spec.directory.empty()) args.emplace_back("--own-folder");
  args.insert(args.end(), spec.extra.begin(), spec.extra.end());
  start(std::move(args));
  try {
    wait_ready(Deadline(spec.timeout), spec.stop);
  } catch (...) {
    stop();
    throw;
  }
}

void SoftTpuProcess::start(std::vector<std::string> args) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("create", "pipe");
  output_ = Fd(ends[0]);
  Fd in(ends[1]);
  Fd errors(::open(errors_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!errors) throw_errno("create", errors_);
  std::vector<char*> argv;
  for (auto& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("start", args[0]);
  if (pid_ == 0) become(argv.data(), in.get(), errors.get(), parent);
}

void SoftTpuProcess::wait_ready(Deadline deadline, const std::function<bool()>& stop) {
  char buffer[512];
  for (;;) {
    pollfd p{output_.get(), POLLIN, 0};
    auto nap = std::min<std::chrono::nanoseconds>(deadline.left(), 100ms);
    int ready = ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(nap).count()));
    if (stop && stop()) throw Error({Errc::timeout, "start", "softtpu", "told to stop", "", 0});
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && !deadline.passed()) continue;
    if (ready == 0)
      throw Error({Errc::timeout, "start", "softtpu",
                   "it was not ready after " + to_string(deadline.budget()), "", 0});
    ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    if (n > 0) said_.append(buffer, static_cast<size_t>(n));
    if (said_.starts_with("ready ") || said_.find("\nready ") != std::string::npos) return;
    if (n <= 0) throw_ended();
  }
}

void SoftTpuProcess::throw_ended() {
  std::string last;
  std::ifstream in(errors_);
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) last = line;
  for (Deadline grace(stop_grace); running() && !grace.passed();) ::poll(nullptr, 0, 1);
  bool usage = pid_ < 0 && WIFEXITED(status_) && WEXITSTATUS(status_) == exit_usage;
  throw Error(
      {usage ? Errc::usage : Errc::io, "start", "softtpu", last.empty() ? "it ended at once" : last, "", 0});
}

bool SoftTpuProcess::running() {
  if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) != 0) pid_ = -1;  // reaped, here or elsewhere
  return pid_ > 0;
}

void SoftTpuProcess::stop() noexcept {
  if (running()) {
    ::kill(pid_, SIGTERM);
    ::kill(pid_, SIGCONT);
    for (Deadline grace(stop_grace); running() && !grace.passed();) ::poll(nullptr, 0, 2);
    if (running()) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  std::error_code ec;
  fs::remove(socket_, ec);
  fs::remove(control_, ec);
  if (fs::file_size(errors_, ec) == 0 && !ec) fs::remove(errors_, ec);
}

SoftTpuProcess::~SoftTpuProcess() { stop(); }

}  // namespace kz
