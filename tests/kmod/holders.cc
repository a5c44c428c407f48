// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/holders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "shim/base/error.h"
#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/load.h"
#include "tests/kmod/text_file.h"

namespace kz::test {
namespace {

void hold_open(const std::string& node, const OtherUser::Link& link) {
  Fd fd(::open(node.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fd) fd = Fd(::open(node.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd) throw_errno("open", node);
  link.ready();
  link.wait_for_end();
}

void hold_map(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  if (user.map(65536) == nullptr) throw_errno("map", node);
  user.close();  // the mapping alone keeps the file
  link.ready();
  link.wait_for_end();
}

void hold_poll(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  link.ready();
  for (pollfd p{user.fd(), POLLIN, 0}; !link.told_to_end();)
    if (::poll(&p, 1, 50) == 1 && (p.revents & POLLHUP) != 0) return;
}

void hold_ring(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  Ring ring(8);
  int fd = user.fd();
  if (io_uring_register_files(&ring.raw(), &fd, 1) < 0) throw_errno("register", node);
  user.close();
  link.ready();
  link.wait_for_end();
}

void hold_resets(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  link.ready();
  for (int rc = 0; !link.told_to_end() && rc != -ENODEV;) {
    kz_ioc_reset r{};
    r.kind = KZ_RESET_KIND_FUNCTION;
    rc = call(user.fd(), KZ_IOC_RESET, r);
  }
}

}  // namespace

void hold_commands(const std::string& node, const OtherUser::Link& link) {
  User user(node);
  user.submit(user.copies(64));
  link.ready();
  while (!link.told_to_end() && user.submit(user.copies(64)) != -ENODEV) ::poll(nullptr, 0, 5);
}

std::vector<Way> ways(const Target& t) {
  if (!t.ours()) return {{"open", hold_open}};
  std::vector<Way> out{{"open", hold_open},
                       {"polled", hold_poll, true},
                       {"commands in flight", hold_commands, true},
                       {"being reset", hold_resets, true},
                       {"DMA by ioctl", [](auto& node, auto& link) { keep_busy(node, link, false); }, true}};
  if (exists(t.sysfs() + "/resource4")) out.push_back({"mapped", hold_map});
  if (Ring::allowed()) {
    out.push_back({"registered with io_uring", hold_ring});
    out.push_back({"DMA by io_uring", [](auto& node, auto& link) { keep_busy(node, link, true); }, true});
  }
  return out;
}

std::string some_node(const Target& t) {
  auto nodes = nodes_of(t);
  if (nodes.empty()) skip("the driver " + t.driver + " offers no node that could be held open");
  return nodes.front();
}

void end_holder(OtherUser& other, const char* name, bool device_stayed) {
  if (!other.end(30)) {
    evidence(ev::driver, {{"what", "hangs"}, {"step", name}, {"stack", other.where()}});
    ADD_FAILURE() << name << ": the user hangs: " << other.where();
    return other.kill();
  }
  const Seen& s = other.seen();
  if (WIFSIGNALED(other.status()))
    ADD_FAILURE() << name << ": the user died by signal " << WTERMSIG(other.status());
  if (s.twice != 0 || s.never != 0)
    wrong("lost",
          fmt::format("{}: {} commands ended twice, {} never, of {}", name, s.twice, s.never, s.submitted));
  if (device_stayed && (s.ended_lost != 0 || s.last_error != 0))
    wrong("lost", fmt::format("{}: {} commands lost, errno {}, though the device stayed", name, s.ended_lost,
                              s.last_error));
}

long long pins_out() {
  text_file("/proc/sys/vm/stat_refresh");
  long long got = 0, given = 0;
  const std::string all = text_file("/proc/vmstat");
  for (auto [word, value] :
       {std::pair<const char*, long long*>{"nr_foll_pin_acquired ", &got}, {"nr_foll_pin_released ", &given}})
    if (auto at = all.find(word); at != std::string::npos)
      *value = std::atoll(all.c_str() + at + std::strlen(word));
  return got - given;
}

Holdings holdings(int fd) {
  kz_ioc_telemetry t{};
  kz_info i{};
  Holdings h;
  if (call(fd, KZ_IOC_TELEMETRY, t) == 0) h.hbm_free = t.t.hbm_free_bytes, h.contexts = t.t.contexts;
  if (call(fd, KZ_IOC_INFO, i) == 0) h.queues_free = i.queues_free;
  h.pins = pins_out();
  return h;
}

}  // namespace kz::test
