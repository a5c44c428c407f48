// SPDX-License-Identifier: GPL-2.0-or-later
// Other users of the device: one that is killed with work in flight, one that comes while we have it.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "shim/base/fd.h"
#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"
#include "tests/runtime/memory.h"

namespace kz::test {
namespace {

// What the child tells before it is killed.
struct Report {
  char ready = 0;  // 'r', or 'e' where it failed
  uint64_t physical = 0;
  char text[200] = {};
};

void tell(int fd, const Report& report) {
  if (::write(fd, &report, sizeof report) != sizeof report) ::_exit(1);
}

// Takes the device, leaves a secret in HBM, and keeps three queues busy until it dies. Never returns.
[[noreturn]] void client(const std::string& uri, uint64_t seed, int fd) {
  Report report;
  try {
    auto device = open_device(uri);
    auto context = device->create_context();
    auto block = context->alloc({uint64_t{1} << 20});
    std::vector<std::unique_ptr<Queue>> queues;
    for (int i = 0; i < 3; ++i) queues.push_back(context->open_queue());
    auto host = device->dma_buffer({.size = {65536}});
    fill_payload(host->bytes(), {seed});
    run_ok(*queues[0], {cmd::Copy{at(host->iova()), at(block->addr()), 65536}});
    if (device->capabilities().has(Cap::hbm_physical))
      report.physical = device->physical(*context, block->addr()).value;
    for (bool told = false;; told = true) {
      for (auto& queue : queues)
        while (queue->outstanding() < queue->depth())
          queue->submit({cmd::Copy{at(block->addr()), at(block->addr() + 524288), 524288}});
      if (!told) {
        report.ready = 'r';
        tell(fd, report);
      }
      for (auto& queue : queues) queue->poll();
    }
  } catch (const std::exception& e) {
    report.ready = 'e';
    std::string_view(e.what()).copy(report.text, sizeof report.text - 1);
    tell(fd, report);
  }
  ::_exit(1);
}

// Without it a client would keep the device after a test that was killed.
void die_with(pid_t parent) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(1);
}

// Kills its child at the latest when the test ends.
class Child {
 public:
  Child(const std::string& uri, uint64_t seed) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make a pipe", "child client");
    Fd read(ends[0]), write(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork", "child client");
    if (pid_ == 0) {
      die_with(parent);
      read.reset();
      client(uri, seed, write.get());
    }
    read_ = std::move(read);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;

  Report wait_ready() {
    Report report;
    pollfd p{read_.get(), POLLIN, 0};
    if (::poll(&p, 1, 10000) != 1 || ::read(read_.get(), &report, sizeof report) != sizeof report)
      throw Error({.code = Errc::timeout,
                   .operation = "wait for the child's work",
                   .target = "child client",
                   .detail = "nothing in 10 s"});
    return report;
  }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  Fd read_;
};

}  // namespace

KZ_TEST(
    boundary, client_killed,
    {.meaning = "a user that dies with commands in flight leaves no memory, no context and no secret behind",
     .level = 4,
     .labels = {"destructive"},
     .needs = {Cap::contexts, Cap::hbm_alloc, Cap::dma, Cap::telemetry},
     .limit = 60s}) {
  for (uint64_t round = 0; round < 3; ++round) {
    close_device();
    before_danger("kill -9 a client with commands in flight");
    Report report;
    {
      Child child(device_uri(), seed() + round);
      report = child.wait_ready();
      if (report.ready != 'r') FAIL() << "the child client could not work: " << report.text;
      child.kill();
    }
    const auto start = Clock::now();
    reopen_device();
    metric("boundary.reopen_after_kill",
           std::chrono::duration<double, std::milli>(Clock::now() - start).count(), "ms");
    const auto& limits = caps().limits;
    const Telemetry now = device().telemetry();
    if (now.contexts.value_or(0) != 0) {
      evidence(ev::reset,
               {{"kind", "client_gone"}, {"what", "state_kept"}, {"ms", 0}, {"state", "contexts"}});
      ADD_FAILURE() << *now.contexts << " context(s) of the dead client are still there";
    }
    const uint64_t whole = limits.hbm_bytes - now.pages_retired.value_or(0) * limits.hbm_page;
    if (const uint64_t free = settled_free(device(), whole); now.hbm_free && free < whole) {
      evidence(ev::hbm_leak,
               {{"bytes", whole - free}, {"cycles", 1}, {"slope_bytes_per_cycle", whole - free}});
      ADD_FAILURE() << whole - free << " bytes of HBM stayed with the dead client";
    }
    auto queue = open_queue(device().root_context());
    HostArea host(device(), {.size = {65536}});
    if (report.physical && limits.hbm_cleared) {
      read_into(*queue, HbmAddr{report.physical}, host, 65536);
      const bool dirty =
          std::ranges::any_of(host.bytes(), [](std::byte b) { return b != std::byte{0} && b != kNotRead; });
      if (dirty)
        evidence(ev::hbm_not_cleared,
                 {{"after", "context"}, {"pattern", read_tag(host.bytes()) ? "the last owner's" : "other"}});
      EXPECT_FALSE(dirty) << "the dead client's memory can be read";
    }
    run_good(*queue, {cmd::Nop{}});
  }
}

KZ_TEST(boundary, second_client,
        {.meaning = "a second user is refused as busy, at once, and the first one does not notice",
         .level = 4,
         .needs = {Cap::queues},
         .limit = 20s}) {
  need_lasting_device();
  auto context = device().create_context();
  auto queue = open_queue(*context);
  for (int i = 0; i < 5; ++i) {
    const auto start = Clock::now();
    try {
      auto second = open_device(device_uri(), {.timeout = 3s});
      evidence(ev::isolation, {{"how", "second_client"}});
      ADD_FAILURE() << "a second user was let in";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::busy) << e.what();
    }
    metric("boundary.second_client_refused",
           std::chrono::duration<double, std::milli>(Clock::now() - start).count(), "ms");
    for (int n = 0; n < 20; ++n) run_good(*queue, {cmd::Nop{}});
  }
}

}  // namespace kz::test
