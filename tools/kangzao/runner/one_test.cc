// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/one_test.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "tools/kangzao/runner/process.h"

namespace kz {
namespace {

using nlohmann::json;

constexpr size_t most_records = 20'000;   // of one test; a flood must not fill the disk
constexpr size_t most_output = 256 << 10;  // kept of what it prints
constexpr auto term_grace = 2s;

class Attempt {
 public:
  explicit Attempt(const TestRun& run) : run_(run) {}

  TestOutcome go() {
    start();
    Deadline limit(std::chrono::nanoseconds(static_cast<int64_t>(run_.test.limit_s * 1e9)));
    while (!ended_ && !limit.passed() && !run_.stop()) step(std::min<std::chrono::nanoseconds>(limit.left(), 1s));
    out_.seconds = std::chrono::duration<double>(limit.elapsed()).count();
    if (!ended_) end_it(run_.stop());
    drain();
    judge(limit.budget());
    sweep();
    return std::move(out_);
  }

 private:
  void start() {
    int pair[2], pipe[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw_errno("create", "socket pair");
    records_ = Fd(pair[0]);
    Fd theirs(pair[1]);
    if (::pipe2(pipe, O_CLOEXEC) != 0) throw_errno("create", "pipe");
    printed_ = Fd(pipe[0]);
    Fd print(pipe[1]);
    for (int fd : {records_.get(), printed_.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    pid_ = spawn({run_.test.program, "--gtest_filter=" + run_.test.suite + "." + run_.test.test},
                 {{"KANGZAO_DEVICE", run_.uri},
                  {"KANGZAO_SEED", std::to_string(run_.seed)},
                  {"KANGZAO_PROFILE", run_.profile},
                  {"KANGZAO_FD", std::to_string(theirs.get())},
                  {"KANGZAO_RUN_DIR", run_.run_dir}},
                 {theirs.get()}, print.get());
    pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }

  void step(std::chrono::nanoseconds wait) {
    pollfd p[3] = {{pidfd_.get(), POLLIN, 0}, {records_.get(), POLLIN, 0}, {printed_.get(), POLLIN, 0}};
    int ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
    if (::poll(p, 3, ms) <= 0) return;
    if (p[1].revents != 0) take_records();
    if (p[2].revents != 0) take_output();
    if (p[0].revents != 0) reap();
  }

  void reap() {
    if (::waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  }

  void take_records() {
    std::string buffer(128 << 10, '\0');
    for (int n = 0; n < 64; ++n) {
      ssize_t got = ::recv(records_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0) return;
      if (got == 0) {  // the other end is closed: nothing more will come
        records_.reset();
        return;
      }
      take_record(json::parse(buffer.begin(), buffer.begin() + got, nullptr, false));
    }
  }

  void take_record(json record) {
    if (!record.is_object()) return;
    std::string type = record.value("type", "");
    if (type == "verdict") {
      if (auto v = parse_verdict(record.value("verdict", ""))) {
        out_.verdict = *v;
        out_.reason = record.value("reason", "");
        out_.failures = record.value("failures", json::array());
        have_verdict_ = true;
      }
      return;
    }
    bool danger = type == "danger";
    if (danger) out_.last_danger = record.value("step", "");
    if (danger || ++count_ <= most_records) {
      record["id"] = run_.test.id;
      run_.record(std::move(record), danger);
    } else if (count_ == most_records + 1) {
      run_.record({{"type", "note"}, {"id", run_.test.id}, {"text", fmt::format("{} sent more than {} records; the rest is dropped", run_.test.id, most_records)}}, false);
    }
    if (danger && records_) ::send(records_.get(), "ok", 2, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void take_output() {
    char buffer[16384];
    for (int n = 0; n < 64; ++n) {
      ssize_t got = ::read(printed_.get(), buffer, sizeof buffer);
      if (got < 0) return;
      if (got == 0) {
        printed_.reset();
        return;
      }
      out_.output.append(buffer, static_cast<size_t>(got));
      if (out_.output.size() > 2 * most_output) out_.output.erase(0, out_.output.size() - most_output);
    }
  }

  void drain() {
    if (records_) take_records();
    if (printed_) take_output();
  }

  // The limit has passed, or we must stop: say where it hangs, ask, then force where that is allowed.
  void end_it(bool stopping) {
    out_.interrupted = stopping;
    if (!stopping) {
      out_.hang = describe_hang(pid_);
      timed_out_ = true;
    }
    ::kill(pid_, SIGTERM);
    for (Deadline grace(term_grace); !ended_ && !grace.passed();) step(100ms);
    if (ended_) return;
    if (!run_.may_kill) {
      out_.left_running = true;
      return;
    }
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    for (Deadline grace(10s); !ended_ && !grace.passed();) step(100ms);
    out_.left_running = !ended_;  // in an uninterruptible wait: not even SIGKILL ends it
  }

  void judge(std::chrono::nanoseconds limit) {
    if (timed_out_) {
      out_.verdict = Verdict::timeout;
      out_.reason = fmt::format("no end within {}{}", to_string(limit), out_.left_running ? "; it could not be ended" : "");
    } else if (ended_ && (!WIFEXITED(status_) || !have_verdict_)) {
      out_.verdict = Verdict::crash;
      out_.reason = WIFEXITED(status_) ? fmt::format("it left with {} and without a verdict", describe_status(status_))
                                       : fmt::format("it died by {}", describe_status(status_));
      if (!out_.last_danger.empty()) out_.reason += ", after the step: " + out_.last_danger;
    }
  }

  // Descendants that it left behind came to us.
  void sweep() {
    for (Deadline grace(3s); !grace.passed();) {
      int left = 0;
      for (auto& [pid, cmd] : children()) {
        if (pid == run_.device_process || (pid == pid_ && out_.left_running)) continue;
        int status;
        if (::waitpid(pid, &status, WNOHANG) == pid) continue;
        ++left;
        if (seen_.insert(pid).second) ++out_.leftovers;
        if (run_.may_kill) ::kill(pid, SIGKILL);
      }
      if (left == 0 || !run_.may_kill) return;
      ::poll(nullptr, 0, 5);
    }
  }

  const TestRun& run_;
  TestOutcome out_;
  Fd records_, printed_, pidfd_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false, have_verdict_ = false, timed_out_ = false;
  size_t count_ = 0;
  std::set<pid_t> seen_;
};

}  // namespace

TestOutcome run_test(const TestRun& run) { return Attempt(run).go(); }

}  // namespace kz
