// SPDX-License-Identifier: GPL-2.0-or-later
// The host's side: who may use the device, and how much memory may be pinned for it.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>

#include "pcie/subject.h"

namespace kz::test {
namespace {

// The distributions' udev rules open these to everybody on purpose: the kernel isolates their users.
bool open_by_policy(const DeviceNode& node) {
  constexpr std::array<std::string_view, 4> subsystems = {"drm", "accel", "nvidia", "kfd"};
  return std::find(subsystems.begin(), subsystems.end(), node.subsystem) != subsystems.end();
}

// What a driver's queues and buffers take at least, and what the quick profile pins.
constexpr uint64_t kLeast = 64 << 10;
constexpr uint64_t kWanted = 8 << 20;

}  // namespace

KZ_TEST(pcie_access, node_permissions,
        {.meaning = "the device's nodes exist and are not open to every user of the machine",
         .level = 1,
         .needs = {Cap::sysfs, Cap::node}}) {
  PciInfo info = read_pci_info(*device().identity().bdf);
  size_t nodes = 0;
  for (const DeviceNode& node : info.nodes) {
    if (!node.is_node) continue;
    ++nodes;
    if (!node.present) {
      evidence(ev::host_access, {{"what", "node_missing"}, {"path", node.path}});
      warn(fmt::format("the kernel has a node {}, but /dev does not (no udev here?)", node.path));
      continue;
    }
    if ((node.mode & 0002) == 0) continue;
    evidence(ev::host_access,
             {{"what", "world_writable"}, {"path", node.path}, {"mode", fmt::format("{:04o}", node.mode)}});
    std::string text = fmt::format("{} has mode {:04o}: every user may write", node.path, node.mode);
    if (open_by_policy(node))
      warn(text + ", as its udev rule wants");
    else
      ADD_FAILURE() << text;
  }
  if (nodes == 0) skip("it has network interfaces only, no node");
}

KZ_TEST(pcie_access, memlock_limit,
        {.meaning = "this user may pin enough memory for a device's queues and buffers",
         .level = 1,
         .labels = {"host"}}) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  bool unlimited = limit.rlim_cur == RLIM_INFINITY || ::geteuid() == 0;
  if (unlimited) return;
  metric("memlock_limit", static_cast<double>(limit.rlim_cur), "bytes");
  if (limit.rlim_cur >= kWanted) return;
  evidence(ev::host_access, {{"what", "memlock"}, {"path", "RLIMIT_MEMLOCK"}, {"limit", limit.rlim_cur}});
  std::string text =
      fmt::format("only {} may be pinned, {} are wanted; raise it: ulimit -l, or memlock in limits.conf",
                  to_string(Bytes{limit.rlim_cur}), to_string(Bytes{kWanted}));
  if (limit.rlim_cur < kLeast)
    ADD_FAILURE() << text;
  else
    warn(text);
}

}  // namespace kz::test
