// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/load/supervise.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "shim/base/error.h"
#include "shim/load/engine.h"
#include "shim/load/report.h"
#include "shim/uri.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"

namespace kz {
namespace {

using load::Ledger;
using load::WorkerAccount;

constexpr auto prepare_limit = 120s;  // until every child has its devices and memory
constexpr auto end_grace = 20s;       // for a child to come to its end after the last time limit
constexpr auto kill_grace = 5s;
constexpr auto hurry = 5s;  // for all to end after a second signal
constexpr auto look = 5ms;
constexpr auto lead_time = 20ms;

volatile sig_atomic_t more_signals = 0;

// After the first signal: one more means "wait for nothing".
void count_signals_from_here() {
  struct sigaction action {};
  action.sa_handler = [](int) { more_signals = 1; };
  for (int s : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(s, &action, nullptr);
}

Fd text_in_memory(const std::string& text) {
  Fd fd = make_memfd("kz-load-text", {std::max<uint64_t>(text.size(), 1)});
  if (::pwrite(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw_errno("write", "the profile for the children");
  return fd;
}

struct LoadChild {
  unsigned process = 0;
  pid_t pid = -1;
  bool over = false;
  std::string where;  // it hung
};

class LoadSupervisor {
 public:
  LoadSupervisor(const LoadRequest& request, LoadOutcome& out)
      : request_(request), out_(out), ledger_(*out.ledger), text_(text_in_memory(request.plan.text)) {}

  void run(const std::function<void(const Ledger&, double)>& tick) try {
    start_children();
    Deadline preparing(prepare_limit);
    int ticks = 0;
    while (!all_over()) {
      reap();
      obey_signals();
      if (ledger_.start() == 0) {
        begin_when_ready(preparing);
      } else if (seconds() >= ticks + 1) {
        tick(ledger_, seconds());
        ticks = static_cast<int>(seconds());
      }
      if (overdue()) end_children();
      std::this_thread::sleep_for(look);
    }
    // Cut short, and not by us, nor by a worker that says why.
    if (ledger_.stop() > asked_ && !told_why())
      trouble("a process of the load was told to stop by somebody else");
  } catch (...) {  // the journal cannot be written: nobody would hear of what goes on
    ask_stop(2);
    end_children();
    throw;
  }

 private:
  void ask_stop(int level) {
    asked_ = std::max(asked_, level);
    ledger_.ask_stop(level);
  }

  bool told_why() const {
    for (size_t w = 0; w < ledger_.workers().size(); ++w)
      if (ledger_.state(w) == WorkerAccount::broke_off || ledger_.state(w) == WorkerAccount::failed_to_start)
        return true;
    return false;
  }

  double seconds() const {
    auto start = Clock::time_point(std::chrono::nanoseconds(ledger_.start()));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void start_children() {
    for (unsigned p = 0; p < request_.plan.processes(); ++p) {
      std::vector<std::string> argv = {program_directory() + "/kangzao",
                                       "internal-load",
                                       "--ledger",
                                       std::to_string(ledger_.fd()),
                                       "--text",
                                       std::to_string(text_.get()),
                                       "--source",
                                       request_.plan.source,
                                       "--process",
                                       std::to_string(p)};
      for (const auto& uri : request_.devices) argv.insert(argv.end(), {"--device", uri});
      if (request_.time) argv.insert(argv.end(), {"--time", *request_.time});
      if (request_.seed) argv.insert(argv.end(), {"--seed", std::to_string(*request_.seed)});
      pid_t pid = spawn(argv, {}, {ledger_.fd(), text_.get()}, -1, SIGTERM);
      children_.push_back({p, pid, false});
    }
  }

  bool all_over() const {
    return std::ranges::all_of(children_, [](const LoadChild& c) { return c.over; });
  }

  void reap() {
    for (LoadChild& c : children_) {
      int status = 0;
      if (c.over || ::waitpid(c.pid, &status, WNOHANG) == 0) continue;
      c.over = true;
      bool cut_off = ledger_.settle(c.process, load::Cancel::process_died);
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !cut_off) continue;
      trouble(fmt::format("process {} (pid {}) of the load ended early: {}", c.process, c.pid,
                          describe_status(status)));
      ask_stop(1);
    }
  }

  void trouble(const std::string& text) { out_.troubles.push_back(text); }

  void obey_signals() {
    if (told_to_stop() && !out_.interrupted) {
      out_.interrupted = true;
      count_signals_from_here();
      ask_stop(1);
    }
    if (more_signals != 0 && asked_ < 2) {
      ask_stop(2);
      stopping_ = Deadline(hurry);
    }
    if (ledger_.stop() != 0 && !stopping_) stopping_ = Deadline(longest_timeout() + end_grace);
  }

  void begin_when_ready(const Deadline& preparing) {
    if (ledger_.stop() != 0) return;
    bool ready = true, failed = false;
    for (size_t w = 0; w < ledger_.workers().size(); ++w) {
      ready &= ledger_.state(w) == WorkerAccount::ready;
      failed |= ledger_.state(w) == WorkerAccount::failed_to_start;
    }
    if (ready) ledger_.set_start((Clock::now() + lead_time).time_since_epoch().count());
    if (!failed && !preparing.passed()) return;
    if (!failed && !ready)
      trouble(fmt::format("the load was not ready after {}", to_string(preparing.budget())));
    if (!ready) ask_stop(1);
  }

  std::chrono::nanoseconds longest_timeout() const {
    std::chrono::nanoseconds most{0};
    for (const auto& job : request_.plan.jobs) most = std::max(most, job.timeout);
    return most;
  }

  bool overdue() const {
    if (stopping_) return stopping_->passed();
    if (ledger_.start() == 0) return false;
    std::chrono::nanoseconds most{0};
    // Until the last that was due is started, everything is read back, and the last of it has ended.
    for (const auto& job : request_.plan.jobs) most = std::max(most, job.time + 3 * job.timeout);
    return std::chrono::duration<double>(most + end_grace).count() < seconds();
  }

  // Those that hang are asked to end, all at once; only where all devices are our own are they killed.
  void end_children() {
    for (LoadChild& c : children_)
      if (!c.over) c.where = describe_hang(c.pid);
    signal_rest(SIGTERM);
    if (only_software()) signal_rest(SIGKILL);
    bool detached = false;
    for (LoadChild& c : children_) {
      if (c.over) continue;
      c.over = true;
      // It may go on for as long as it likes: what it writes from here on does not count.
      if (!std::exchange(detached, true)) ledger_.detach();
      ledger_.settle(c.process, load::Cancel::stopped);
      tell_hang(c, "it is left alone, its device may hang");
    }
  }

  void signal_rest(int signal) {
    for (const LoadChild& c : children_)
      if (!c.over) ::kill(c.pid, signal);
    Deadline deadline(kill_grace);
    for (LoadChild& c : children_) {
      int status = 0;
      if (c.over || !wait_for_child(c.pid, status, deadline)) continue;
      c.over = true;
      ledger_.settle(c.process, load::Cancel::process_died);
      tell_hang(c, "it was ended");
    }
  }

  void tell_hang(LoadChild& c, const char* end) {
    std::ranges::replace(c.where, '\n', ' ');
    trouble(
        fmt::format("process {} (pid {}) of the load did not end; {}; {}", c.process, c.pid, end, c.where));
  }

  bool only_software() const {
    for (const auto& job : request_.plan.jobs)
      for (const auto& uri : job.devices)
        if (job.target == load::Target::device && parse_uri(uri).scheme != "softtpu") return false;
    return true;
  }

  const LoadRequest& request_;
  LoadOutcome& out_;
  Ledger& ledger_;
  Fd text_;
  std::vector<LoadChild> children_;
  std::optional<Deadline> stopping_;
  int asked_ = 0;  // the stop level that we set
};

// How run and its exit codes see an error that kept a load from starting.
int exit_of_start(Errc code) {
  switch (code) {
    case Errc::usage:
      return 2;
    case Errc::io:
    case Errc::bad_data:
      return 4;
    case Errc::gone:
      return 3;
    default:
      return 125;
  }
}

}  // namespace

void LoadRequest::apply() {
  if (!devices.empty()) load::use_devices(plan, devices);
  for (auto& job : plan.jobs) {
    if (time) job.time = load::parse_time(*time);
    if (seed) job.seed = *seed;
    if (job.time == 0ns) throw Error({Errc::usage, "read", "--time", "time is 0", "", 0});
  }
}

LoadOutcome supervise(const LoadRequest& request, const std::function<void(const Ledger&, double)>& tick) {
  LoadOutcome out;
  out.ledger = std::make_unique<Ledger>(request.plan);
  LoadSupervisor(request, out).run(tick);
  return out;
}

int LoadOutcome::exit_code() const {
  std::optional<int> start;
  for (size_t w = 0; w < ledger->workers().size(); ++w) {
    const WorkerAccount& a = ledger->account(w);
    if (ledger->state(w) != WorkerAccount::failed_to_start) continue;
    int code = exit_of_start(static_cast<Errc>(a.errc));
    if (!start || code < *start) start = code;
  }
  if (start == 2 || start == 4) return *start;
  if (interrupted) return 130;
  auto sum = load::add_up(*ledger);
  if (sum->device_lost != 0) return 3;
  if (start) return *start;
  if (!troubles.empty() || !sum->clean()) return 1;
  return sum->all.completed == 0 ? 125 : 0;
}

int load_child(int ledger_fd, int text_fd, const std::string& source, LoadRequest request, unsigned process) {
  catch_signals();
  Fd text(text_fd), shared(ledger_fd);
  std::string profile;
  char piece[4096];
  for (off_t at = 0;; at += 4096) {
    ssize_t n = ::pread(text.get(), piece, sizeof piece, at);
    if (n <= 0) break;
    profile.append(piece, static_cast<size_t>(n));
  }
  request.plan = load::parse_plan(profile, source);
  request.apply();
  Ledger ledger(request.plan, std::move(shared));
  load::OpenDevices devices;
  load::run_process(request.plan, process, ledger, std::ref(devices), load::Start::when_told,
                    {.stop = told_to_stop, .wrong = {}, .audit = {}});
  return 0;
}

}  // namespace kz
