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
#include <utility>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "tools/journal/reader.h"
#include "tools/kangzao/runner/process.h"

namespace kz {
namespace {

using nlohmann::json;

constexpr size_t most_records = 20'000;    // of one test; a flood must not fill the disk
constexpr size_t most_bytes = 16 << 20;    // of all its records
constexpr size_t most_output = 256 << 10;  // kept of what it prints
constexpr auto term_grace = 2s;
constexpr auto drain_time = 10s;
constexpr auto exit_grace = 250ms;  // for what the test left behind to end by itself

bool closed(const Fd& fd) {
  pollfd p{fd.get(), 0, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) != 0;
}

// What a test may say of itself; the rest is for the runner to find out.
bool may_claim(Verdict v) { return v != Verdict::crash && v != Verdict::timeout && v != Verdict::not_run; }

// The records a test may hand over (docs/journal-schema.json), with fields of the right types.
bool well_formed(const json& record) {
  auto is = [&](const char* key, auto check) { return record.contains(key) && check(record[key]); };
  auto string = [](const json& j) { return j.is_string(); };
  // A detail too big for a packet was cut to a text by its sender.
  auto object = [](const json& j) { return j.is_object() || j.is_string(); };
  auto number = [](const json& j) { return j.is_number() || j.is_null(); };  // null: NaN or infinite
  std::string type = text_of(record, "type");
  if (type == "evidence") return is("kind", string) && is("detail", object);
  if (type == "metric") return is("name", string) && is("value", number) && is("unit", string);
  if (type == "danger") return is("step", string);
  if (type == "snapshot")
    return is("when", [](const json& j) { return j == "before" || j == "after"; }) && is("data", object);
  return type == "note" && is("text", string);
}

class Attempt {
 public:
  explicit Attempt(const TestRun& run) : run_(run) {}
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() {  // the journal failed while it ran
    if (pid_ <= 0 || ended_ || out_.left_running) return;
    ::kill(-pid_, run_.may_kill ? SIGKILL : SIGTERM);
    wait_for_child(pid_, status_, Deadline(term_grace));
  }

  TestOutcome go() {
    start();
    Deadline limit(std::chrono::nanoseconds(static_cast<int64_t>(run_.test.limit_s * 1e9)));
    while (!ended_ && !limit.passed() && !run_.stop()) {
      step(std::min<std::chrono::nanoseconds>(limit.left(), 1s));
      tick();
    }
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
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
      throw_errno("create", "socket pair");
    records_ = Fd(pair[0]);
    Fd theirs(pair[1]);
    if (::pipe2(pipe, O_CLOEXEC) != 0) throw_errno("create", "pipe");
    printed_ = Fd(pipe[0]);
    Fd print(pipe[1]);
    for (int fd : {records_.get(), printed_.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    for (auto& [pid, name] : children()) before_.insert(pid);
    Environment environment = run_.more;
    environment.insert({{"KANGZAO_DEVICE", run_.uri},
                        {"KANGZAO_SEED", std::to_string(run_.seed)},
                        {"KANGZAO_PROFILE", run_.profile},
                        {"KANGZAO_FD", std::to_string(theirs.get())},
                        {"KANGZAO_RUN_DIR", run_.run_dir}});
    pid_ = spawn({run_.test.program, "--gtest_filter=" + run_.test.suite + "." + run_.test.test},
                 environment, {theirs.get()}, print.get(), run_.may_kill ? SIGKILL : SIGTERM);
    out_.pid = pid_;
    if (run_.started) run_.started(pid_);
    pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  }

  void step(std::chrono::nanoseconds wait) {
    pollfd p[3] = {{pidfd_.get(), POLLIN, 0}, {records_.get(), POLLIN, 0}, {printed_.get(), POLLIN, 0}};
    if (!pidfd_) wait = std::min<std::chrono::nanoseconds>(wait, 20ms);  // a kernel without pidfd_open
    int ms = static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count());
    if (::poll(p, 3, ms) > 0) {
      if (p[1].revents != 0) take_records();
      if (p[2].revents != 0) take_output();
    }
    reap();
  }

  void tick() {
    if (!run_.tick || last_tick_.elapsed() < 1s) return;
    last_tick_ = Deadline(1s);
    run_.tick();
  }

  void reap() {
    if (::waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
  }

  // False: there is nothing more now. Never more than 64, so that a flood leaves time for the limit.
  bool take_records() {
    std::string buffer(128 << 10, '\0');
    for (int n = 0; n < 64; ++n) {
      ssize_t got = ::recv(records_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0) return false;
      if (got == 0) {  // an empty packet, or the other end is closed
        if (++empty_ > 1 && closed(records_)) {
          records_.reset();
          return false;
        }
        if (!closed(records_)) complain("sent something that is no record");
        continue;
      }
      empty_ = 0;
      bytes_ += static_cast<size_t>(got);
      take_record(parse_record({buffer.data(), static_cast<size_t>(got)}));
    }
    return true;
  }

  void take_record(json record) {
    std::string type = text_of(record, "type");
    if (type == "verdict") return take_verdict(record);
    if (type == "expect-log") return take_expected(record);
    if (!well_formed(record)) return complain("sent something that is no record");
    bool danger = type == "danger";
    if (danger) take_danger(record);
    bool fits = ++count_ <= most_records && bytes_ <= most_bytes;
    if (danger || fits) {
      record["id"] = run_.test.id;
      run_.record(std::move(record), danger);
    } else if (!std::exchange(flooded_, true)) {
      note(fmt::format("{} sent more than {} records or {} MiB; the rest is dropped", run_.test.id,
                       most_records, most_bytes >> 20));
    }
    if (danger && records_) ::send(records_.get(), "ok", 2, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Not for the journal: only says how to judge the kernel's log.
  void take_expected(const json& record) {
    // What a module by its mere being there does to the kernel, no more: proprietary, out of tree, unsigned.
    constexpr unsigned long of_modules = 1u << 0 | 1u << 12 | 1u << 13;
    std::string text = text_of(record, "text");
    if (record.contains("taint") && record["taint"].is_number_unsigned())
      out_.expected_taint |= record["taint"].get<unsigned long>() & of_modules;
    if (text.empty()) return complain("expects a kernel line without a word");
    const bool report = record.contains("report") && record["report"] == true;
    auto& kept = report ? out_.expected_log.reports : out_.expected_log.words;
    if (kept.size() < 100) kept.push_back(text);
  }

  void take_danger(const json& record) {
    out_.last_danger = text_of(record, "step");
    if (run_.test.has_label("destructive") || std::exchange(unlabelled_, true)) return;
    note(fmt::format("{} is not labelled destructive and announced: {}", run_.test.id, out_.last_danger));
  }

  void take_verdict(const json& record) {
    auto v = parse_verdict(text_of(record, "verdict"));
    if (!v || !may_claim(*v)) return complain("claimed a verdict that no test can give");
    out_.verdict = *v;
    out_.reason = text_of(record, "reason");
    if (record.contains("failures") && record["failures"].is_array()) out_.failures = record["failures"];
    have_verdict_ = true;
  }

  void note(const std::string& text) {
    run_.record({{"type", "note"}, {"id", run_.test.id}, {"text", text}}, false);
  }
  void complain(const char* what) {
    if (!std::exchange(complained_, true)) note(fmt::format("{} {}", run_.test.id, what));
  }

  bool take_output() {
    char buffer[16384];
    for (int n = 0; n < 64; ++n) {
      ssize_t got = ::read(printed_.get(), buffer, sizeof buffer);
      if (got < 0) return false;
      if (got == 0) {
        printed_.reset();
        return false;
      }
      out_.output.append(buffer, static_cast<size_t>(got));
      if (out_.output.size() > 2 * most_output) out_.output.erase(0, out_.output.size() - most_output);
    }
    return true;
  }

  // What is still under way when the test has ended. A process that it left behind may go on for ever.
  void drain() {
    Deadline enough(drain_time);
    while (records_ && take_records() && ended_ && !enough.passed()) {
    }
    while (printed_ && take_output() && ended_ && !enough.passed()) {
    }
  }

  // The limit has passed, or we must stop: say where it hangs, ask, then force where that is allowed.
  void end_it(bool stopping) {
    out_.interrupted = stopping;
    if (!stopping) {
      timed_out_ = true;
      out_.hang = describe_hang(pid_);
      if (run_.state) out_.hang += "device: " + run_.state() + "\n";
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
      std::string said = have_verdict_ ? fmt::format(", though it had said {}", to_string(out_.verdict)) : "";
      out_.verdict = Verdict::timeout;
      out_.reason = fmt::format("no end within {}{}{}", to_string(limit), said,
                                out_.left_running ? "; it could not be ended" : "");
    } else if (ended_ && (!WIFEXITED(status_) || WEXITSTATUS(status_) != 0 || !have_verdict_)) {
      std::string said =
          have_verdict_ ? fmt::format("after saying {}", to_string(out_.verdict)) : "without a verdict";
      out_.verdict = Verdict::crash;
      out_.reason = WIFEXITED(status_) ? fmt::format("it left with {} {}", describe_status(status_), said)
                                       : fmt::format("it died by {} {}", describe_status(status_), said);
      if (!out_.last_danger.empty()) out_.reason += ", after the step: " + out_.last_danger;
    }
  }

  // Descendants that it left behind came to us.
  void sweep() {
    Deadline by_itself(exit_grace);
    for (Deadline grace(3s); !grace.passed();) {
      int left = 0;
      for (auto& [pid, name] : children()) {
        if (pid == run_.device_process || (pid == pid_ && out_.left_running)) continue;
        int status;
        if (::waitpid(pid, &status, WNOHANG) == pid) continue;
        if (before_.contains(pid)) continue;  // another's, and counted there
        ++left;
        if (!by_itself.passed()) continue;
        if (seen_.insert(pid).second) ++out_.leftovers;
        if (run_.may_kill) ::kill(pid, SIGKILL);
      }
      if (left == 0 || (!run_.may_kill && by_itself.passed())) return;
      ::poll(nullptr, 0, 5);
    }
  }

  const TestRun& run_;
  TestOutcome out_;
  Fd records_, printed_, pidfd_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false, have_verdict_ = false, timed_out_ = false, complained_ = false, flooded_ = false,
       unlabelled_ = false;
  Deadline last_tick_{1s};
  size_t count_ = 0, bytes_ = 0, empty_ = 0;
  std::set<pid_t> before_, seen_;  // children: there before the test, left by it
};

}  // namespace

TestOutcome run_test(const TestRun& run) { return Attempt(run).go(); }

}  // namespace kz
