// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shim/base/error.h"

extern char** environ;

namespace kz {
namespace fs = std::filesystem;
namespace {

constexpr size_t most_answer = 4 << 20;

std::vector<std::string> merged_environment(const Environment& extra) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string_view entry(*e);
    if (entry.starts_with("GTEST_")) continue;  // what our caller asks of its own tests
    if (!extra.contains(std::string(entry.substr(0, entry.find('='))))) out.emplace_back(entry);
  }
  for (auto& [name, value] : extra) out.push_back(name + "=" + value);
  return out;
}

std::string slurp(const fs::path& path, size_t most = 4096) {
  std::ifstream in(path);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) text.pop_back();
  return text;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& w : words) out.push_back(w.data());
  out.push_back(nullptr);
  return out;
}

// False when the other end is closed.
bool read_all(const Fd& from, std::string& into) {
  char buffer[8192];
  for (;;) {
    ssize_t n = ::read(from.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0;
    if (into.size() < most_answer) into.append(buffer, static_cast<size_t>(n));
  }
}

struct Pipe {
  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) throw_errno("create", "pipe");
    out = Fd(fds[0]);
    in = Fd(fds[1]);
    ::fcntl(out.get(), F_SETFL, O_NONBLOCK);
  }
  Fd out, in;
  bool open = true;
};

Captured give_up(pid_t pid, bool may_kill, Captured got) {
  got.timed_out = true;
  got.status = -1;
  int status = 0;
  ::kill(-pid, may_kill ? SIGKILL : SIGTERM);
  ::kill(pid, may_kill ? SIGKILL : SIGTERM);
  wait_for_child(pid, status, Deadline(2s));
  return got;
}

}  // namespace

pid_t spawn(const std::vector<std::string>& argv, const Environment& extra, const std::vector<int>& keep,
            int output, int death_signal, int errors) {
  std::vector<std::string> words = argv, variables = merged_environment(extra);
  std::vector<char*> args = pointers(words), env = pointers(variables);
  sigset_t none;
  ::sigemptyset(&none);
  pid_t parent = ::getpid(), pid = ::_Fork();  // no library's fork handlers: they may wait for its threads
  if (pid < 0) throw_errno("start", argv[0]);
  if (pid > 0) return pid;
  // Between fork and exec: system calls only.
  ::prctl(PR_SET_PDEATHSIG, death_signal);
  if (::getppid() != parent) ::_exit(127);
  ::setpgid(0, 0);
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ, SIGCHLD}) ::signal(s, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  int null = ::open("/dev/null", O_RDONLY);
  if (null >= 0) ::dup2(null, STDIN_FILENO);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  if (errors >= 0) ::dup2(errors, STDERR_FILENO);
  for (int fd : keep) ::fcntl(fd, F_SETFD, 0);
  ::execve(args[0], args.data(), env.data());
  ::_exit(127);
}

bool wait_for_child(pid_t pid, int& status, Deadline deadline) {
  for (;;) {
    pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid || (got < 0 && errno == ECHILD)) return true;
    if (deadline.passed()) return false;
    ::poll(nullptr, 0, 2);
  }
}

Captured run_captured(const std::vector<std::string>& argv, const Environment& extra,
                      std::chrono::milliseconds limit, const CaptureRules& rules) {
  Pipe output, errors;
  pid_t pid = spawn(argv, extra, {}, output.in.get(), rules.may_kill ? SIGKILL : SIGTERM, errors.in.get());
  output.in.reset();
  errors.in.reset();
  Captured got;
  bool ended = false;
  // Its end counts, not that of its output: a grandchild may hold the pipe open.
  for (Deadline deadline(limit); !ended;) {
    ended = ::waitpid(pid, &got.status, WNOHANG) == pid;
    output.open = read_all(output.out, got.output);
    errors.open = read_all(errors.out, got.errors);
    if (ended) break;
    if (deadline.passed() || (rules.stop && rules.stop()))
      return give_up(pid, rules.may_kill, std::move(got));
    // A closed end would be ready for ever.
    pollfd p[2] = {{output.open ? output.out.get() : -1, POLLIN, 0},
                   {errors.open ? errors.out.get() : -1, POLLIN, 0}};
    auto left = std::min<std::chrono::nanoseconds>(deadline.left(), output.open || errors.open ? 20ms : 2ms);
    ::poll(p, 2, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }
  return got;
}

std::string last_line(const std::string& text) {
  auto end = text.find_last_not_of("\r\n ");
  if (end == std::string::npos) return {};
  auto newline = text.rfind('\n', end);
  auto begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end + 1 - begin);
}

std::string describe_status(int status) {
  if (status == -1) return "no answer in time";
  if (WIFEXITED(status)) return fmt::format("exit {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("status {:#x}", status);
}

bool is_ending(pid_t pid) {
  std::istringstream status(slurp(fmt::format("/proc/{}/status", pid)));
  constexpr unsigned long long killed = 1ull << (SIGKILL - 1);
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:") && line.find_first_of("ZX") != std::string::npos) return true;
    if (line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"))
      if ((std::strtoull(line.c_str() + 7, nullptr, 16) & killed) != 0) return true;
  }
  return false;
}

uint64_t start_ticks(pid_t pid) {
  // proc(5): field 22, counted after the name in parentheses, which may hold anything.
  std::string stat = slurp(fmt::format("/proc/{}/stat", pid));
  auto name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  for (int n = 3; n <= 22 && fields >> field; ++n)
    if (n == 3 && (field == "Z" || field == "X")) return 0;
  return fields ? std::strtoull(field.c_str(), nullptr, 10) : 0;
}

std::string describe_hang(pid_t pid) {
  std::string out;
  std::error_code ec;
  int threads = 0;
  for (auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), ec)) {
    if (++threads > 16) break;
    std::istringstream status(slurp(task.path() / "status"));
    std::string state = "?";
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("State:")) state = line.substr(7);
    out += fmt::format("thread {} {}: {}; wchan {}; syscall {}\n", task.path().filename().string(),
                       slurp(task.path() / "comm"), state, slurp(task.path() / "wchan"),
                       slurp(task.path() / "syscall"));
    if (auto stack = slurp(task.path() / "stack"); !stack.empty()) out += stack + "\n";
  }
  return out.empty() ? "the process is gone" : out;
}

std::map<pid_t, std::string> children() {
  std::map<pid_t, std::string> out;
  std::istringstream list(slurp(fmt::format("/proc/self/task/{}/children", ::getpid()), 65536));
  for (pid_t pid; list >> pid;) {
    // Not the command line: reading that of a process stuck in the kernel can block.
    out[pid] = slurp(fmt::format("/proc/{}/comm", pid));
  }
  return out;
}

nlohmann::json process_usage(pid_t pid) {
  nlohmann::json out = nlohmann::json::object();
  std::error_code ec;
  fs::directory_iterator fds(fmt::format("/proc/{}/fd", pid), ec);
  if (!ec) out["fds"] = std::distance(begin(fds), end(fds));
  std::istringstream status(slurp(fmt::format("/proc/{}/status", pid)));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmLck:")) out["locked_kib"] = std::strtoull(line.c_str() + 6, nullptr, 10);
    if (line.starts_with("VmPin:")) out["pinned_kib"] = std::strtoull(line.c_str() + 6, nullptr, 10);
    if (line.starts_with("VmRSS:")) out["resident_kib"] = std::strtoull(line.c_str() + 6, nullptr, 10);
  }
  return out;
}

void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("become", "subreaper");
}

std::string program_directory() {
  std::error_code ec;
  auto self = fs::read_symlink("/proc/self/exe", ec);
  if (ec) throw_errno("read", "/proc/self/exe", ec.value());
  return self.parent_path();
}

}  // namespace kz
