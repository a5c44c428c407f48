// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/load.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shim/pci/sysfs.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr double start_time = 20, end_time = 30;  // seconds

// One that does not get to work within this is no load.
constexpr int settle_ms = 700;

// What a user may be told whose device was taken away (shim/uapi/kz_ioctl.h).
bool says_gone(int error) { return error == ENODEV || error == ESTALE || error == EIO; }

[[noreturn]] void run_shell(const std::string& text) {
  ::execl("/bin/sh", "sh", "-c", text.c_str(), static_cast<char*>(nullptr));
  ::_exit(127);
}

// A shell in its own group, so that all of it can be ended; our end is its end.
void run_command(const std::string& text, const OtherUser::Link& link) {
  const pid_t shell = ::fork();
  if (shell == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_shell(text);
  }
  ::poll(nullptr, 0, settle_ms);
  int status = 0;
  if (shell < 0 || ::waitpid(shell, &status, WNOHANG) != 0) ::_exit(2);
  link.seen()->submitted = 1;
  link.ready();
  while (!link.told_to_end() && ::waitpid(shell, &status, WNOHANG) == 0) ::poll(nullptr, 0, 20);
  ::kill(-shell, SIGTERM);
  wait_until(5s, [&] { return ::waitpid(shell, &status, WNOHANG) != 0; });
  ::kill(-shell, SIGKILL);
  link.seen()->ended_well = 1;
}

}  // namespace

void need_load(const Target& t) {
  if (!t.ours() && t.load_command.empty())
    skip("nothing to load the device with: give --load-command, such as 'fio --filename=/dev/... ...'");
}

std::vector<std::string> nodes_of(const Target& t) {
  if (t.ours()) return {t.node};
  std::vector<std::string> out;
  for (auto& n : read_pci_info(parse_bdf(t.slot)).nodes)
    if (n.is_node && n.present) out.push_back(n.path);
  return out;
}

Load::Load(const Target& t) : target_(t) {
  if (t.ours()) {
    const std::string node = t.node;
    for (bool by_uring : {true, false}) {
      if (by_uring && !Ring::allowed()) continue;
      users_.push_back(std::make_unique<OtherUser>(
          [node, by_uring](const OtherUser::Link& link) { keep_busy(node, link, by_uring); }));
    }
  }
  if (!t.load_command.empty()) start_command();
  for (auto& u : users_)
    if (!u->wait_ready(start_time))
      throw Error({Errc::io, "start", what(),
                   u->seen().text[0] != 0 ? u->seen().text : "it ended, or was not there in time",
                   "try --load-command by hand", 0});
}

Load::~Load() = default;

void Load::start_command() {
  const std::string text = target_.load_command;
  users_.push_back(
      std::make_unique<OtherUser>([text](const OtherUser::Link& link) { run_command(text, link); }));
}

std::string Load::what() const {
  return target_.load_command.empty() ? "the users of " + target_.node : "the load command";
}

uint64_t Load::commands() const {
  uint64_t n = 0;
  for (auto& u : users_) n += u->seen().ended_well;
  return n;
}

void Load::expect_cut_off() {
  for (auto& u : users_) {
    const bool by_itself = u->wait_ended(target_.ours() ? end_time : 2);
    if (!by_itself && !u->end(end_time)) {
      evidence(ev::driver, {{"what", "hangs"}, {"step", "a user whose device went"}, {"stack", u->where()}});
      ADD_FAILURE() << "a user does not end within " << end_time
                    << " s after his device went: " << u->where();
      u->kill();
      continue;
    }
    const Seen& s = u->seen();
    if (!target_.ours()) continue;
    if (WIFSIGNALED(u->status()))
      ADD_FAILURE() << "a user died by signal " << WTERMSIG(u->status()) << " when his device went";
    if (!by_itself) ADD_FAILURE() << "a user was not told that his device went";
    if (!says_gone(s.last_error)) {
      evidence(ev::driver, {{"what", "errno"}, {"got", s.last_error}, {"when", "device removed"}});
      ADD_FAILURE() << "a user was told errno " << s.last_error << " (" << std::strerror(s.last_error)
                    << ") when his device went " << s.text;
    }
    if (s.twice != 0 || s.never != 0) {
      evidence(ev::driver,
               {{"what", "lost"}, {"twice", s.twice}, {"never", s.never}, {"submitted", s.submitted}});
      ADD_FAILURE() << s.twice << " commands ended twice and " << s.never << " never, of " << s.submitted;
    }
  }
  users_.clear();
}

void Load::expect_clean_end() {
  for (auto& u : users_) {
    if (!u->end(end_time)) {
      ADD_FAILURE() << "a user hangs: " << u->where();
      u->kill();
      continue;
    }
    const Seen& s = u->seen();
    if (!target_.ours()) continue;
    EXPECT_EQ(s.last_error, 0) << s.text;
    EXPECT_EQ(s.twice + s.never + s.ended_lost, 0u)
        << s.twice << " commands ended twice, " << s.never << " never, " << s.ended_lost
        << " without success, of " << s.submitted;
    EXPECT_GT(s.ended_well, 0u);
  }
  users_.clear();
}

}  // namespace kz::test
