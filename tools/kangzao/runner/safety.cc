// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/safety.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace kz {
namespace fs = std::filesystem;
namespace {

using Names = std::set<std::string>;
using Found = std::vector<std::string>;

// Does the resolved path of a class device lead through the PCI function? Through a bridge: everything behind
// it.
bool below(const fs::path& link, const std::string& bdf) {
  std::error_code ec;
  fs::path real = fs::canonical(link, ec);
  if (ec) return false;
  for (auto& part : real)
    if (part == bdf) return true;
  return false;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> out;
  std::error_code ec;
  for (auto& entry : fs::directory_iterator(folder, ec)) out.push_back(entry.path().filename());
  return out;
}

Names class_devices(const SystemRoots& roots, const std::string& cls, const std::string& bdf) {
  fs::path folder = roots.sys + "/class/" + cls;
  Names out;
  for (auto& name : entries(folder))
    if (below(folder / name, bdf)) out.insert(name);
  return out;
}

// A block device, its partitions, and what is stacked on it (dm, md, loop by holders).
void add_blocks(const SystemRoots& roots, const std::string& name, Names& out) {
  if (!out.insert(name).second) return;
  fs::path folder = roots.sys + "/class/block/" + name;
  for (auto& holder : entries(folder / "holders")) add_blocks(roots, holder, out);
  for (auto& part : entries(folder))
    if (part.starts_with(name)) add_blocks(roots, part, out);
  // A path of a multipath NVMe disk (nvme0c1n2) is hidden; nvme0n2, which is used, lies outside the PCI tree.
  static const std::regex path_of("(nvme[0-9]+)c[0-9]+(n[0-9]+)");
  std::smatch m;
  if (std::regex_match(name, m, path_of)) add_blocks(roots, m[1].str() + m[2].str(), out);
}

// A network interface and what is stacked on it (bond, bridge, VLAN).
void add_interfaces(const SystemRoots& roots, const std::string& name, Names& out) {
  if (!out.insert(name).second) return;
  for (auto& entry : entries(roots.sys + "/class/net/" + name))
    if (entry.starts_with("upper_")) add_interfaces(roots, entry.substr(6), out);
}

std::string device_name(const std::string& node) {
  std::error_code ec;
  fs::path real = fs::canonical(node, ec);
  return (ec ? fs::path(node) : real).filename();
}

Names numbers_of(const SystemRoots& roots, const Names& blocks) {
  Names out;
  for (auto& name : blocks) {
    std::ifstream in(roots.sys + "/class/block/" + name + "/dev");
    if (std::string number; in >> number) out.insert(number);
  }
  return out;
}

void find_mounts(const SystemRoots& roots, const Names& blocks, Found& found) {
  Names numbers = numbers_of(roots, blocks), said;
  // By name for file systems with numbers of their own (btrfs), by number for names that lead nowhere
  // (/dev/root).
  std::ifstream mounts(roots.proc + "/mounts"), info(roots.proc + "/self/mountinfo"),
      swaps(roots.proc + "/swaps");
  std::string node, where, id, parent, number, root;
  for (std::string line; std::getline(mounts, line);)
    if (std::istringstream(line) >> node >> where && node.starts_with("/dev/") &&
        blocks.contains(device_name(node)) && said.insert(where).second)
      found.push_back(fmt::format("{} is mounted on {}", node, where));
  for (std::string line; std::getline(info, line);)
    if (std::istringstream(line) >> id >> parent >> number >> root >> where && numbers.contains(number) &&
        said.insert(where).second)
      found.push_back(fmt::format("block device {} is mounted on {}", number, where));
  for (std::string line; std::getline(swaps, line);)
    if (std::istringstream(line) >> node && node.starts_with("/dev/") && blocks.contains(device_name(node)))
      found.push_back(node + " is swap");
}

// A file system over several devices names only one of them as mounted.
void find_btrfs(const SystemRoots& roots, const Names& blocks, Found& found) {
  for (auto& uuid : entries(roots.sys + "/fs/btrfs"))
    for (auto& name : entries(roots.sys + "/fs/btrfs/" + uuid + "/devices"))
      if (blocks.contains(name))
        found.push_back(fmt::format("{} belongs to the mounted btrfs {}", name, uuid));
}

// Held for itself alone by something that no table names (ZFS, a virtual machine's disk).
void find_holders(const SystemRoots& roots, const Names& blocks, Found& found) {
  if (!found.empty()) return;
  for (auto& name : blocks) {
    int fd = ::open((roots.dev + "/" + name).c_str(), O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == EBUSY) found.push_back(name + " is held open by somebody for himself alone");
    if (fd >= 0) ::close(fd);
  }
}

void find_routes(const SystemRoots& roots, const Names& interfaces, Found& found) {
  std::ifstream routes(roots.proc + "/net/route"), routes6(roots.proc + "/net/ipv6_route");
  Names said, said6;
  std::string name, destination;
  for (std::string line; std::getline(routes, line);)
    if (std::istringstream(line) >> name >> destination && interfaces.contains(name) &&
        said.insert(name).second)
      found.push_back(name + (destination == "00000000" ? " carries the default route"
                                                        : " has an address: it carries a route"));
  for (std::string line; std::getline(routes6, line);) {
    name = line.substr(line.find_last_of(" \t") + 1);
    if (line.starts_with("00000000000000000000000000000000 00") && interfaces.contains(name) &&
        said6.insert(name).second)
      found.push_back(name + " carries the IPv6 default route");
  }
}

void find_consoles(const SystemRoots& roots, const std::string& bdf, Found& found) {
  Names ttys = class_devices(roots, "tty", bdf);
  std::ifstream consoles(roots.proc + "/consoles");
  for (std::string line; std::getline(consoles, line);)
    if (std::string name = line.substr(0, line.find(' ')); ttys.contains(name))
      found.push_back(name + " is a console");
  std::ifstream boot_display(roots.sys + "/bus/pci/devices/" + bdf + "/boot_vga");
  if (int first = 0; boot_display >> first && first == 1)
    found.push_back("it is the display that the machine booted with");
  if (!class_devices(roots, "graphics", bdf).empty()) found.push_back("a frame buffer console runs on it");
}

// Virtual functions live and die with their physical one, and may be in somebody's virtual machine.
void find_virtual_functions(const SystemRoots& roots, const std::string& bdf, Found& found) {
  std::ifstream in(roots.sys + "/bus/pci/devices/" + bdf + "/sriov_numvfs");
  if (unsigned n = 0; in >> n && n > 0) found.push_back(fmt::format("{} virtual functions of it are on", n));
}

// Character devices of the function, and the VFIO group or device that a virtual machine or a user-space
// driver holds.
Names nodes_of(const SystemRoots& roots, const std::string& bdf) {
  Names out;
  for (auto& cls : entries(roots.sys + "/class"))
    for (auto& name : class_devices(roots, cls, bdf)) {
      std::ifstream uevent(roots.sys + "/class/" + cls + "/" + name + "/uevent");
      for (std::string line; std::getline(uevent, line);)
        if (line.starts_with("DEVNAME=")) out.insert("/dev/" + line.substr(8));
    }
  std::error_code ec;
  const std::string device = roots.sys + "/bus/pci/devices/" + bdf;
  if (fs::path driver = fs::read_symlink(device + "/driver", ec); !ec && driver.filename() == "vfio-pci") {
    for (auto& name : entries(device + "/vfio-dev")) out.insert("/dev/vfio/devices/" + name);
    if (fs::path group = fs::read_symlink(device + "/iommu_group", ec); !ec)
      out.insert("/dev/vfio/" + group.filename().string());
  }
  return out;
}

void find_users(const SystemRoots& roots, const Names& nodes, Found& found) {
  if (nodes.empty()) return;
  const std::string self = std::to_string(::getpid());
  for (auto& pid : entries(roots.proc)) {
    if (pid.find_first_not_of("0123456789") != pid.npos || pid == self) continue;
    for (auto& fd : entries(roots.proc + "/" + pid + "/fd")) {
      std::error_code ec;
      const std::string target = fs::read_symlink(roots.proc + "/" + pid + "/fd/" + fd, ec);
      if (ec || !nodes.contains(target)) continue;
      std::ifstream comm(roots.proc + "/" + pid + "/comm");
      std::string who;
      std::getline(comm, who);
      found.push_back(fmt::format("process {} ({}) has {} open", pid, who, target));
      break;
    }
  }
}

}  // namespace

std::vector<std::string> inhabitants(const Bdf& address, const SystemRoots& roots) {
  std::string bdf = to_string(address);
  Found found;
  Names blocks, interfaces;
  for (auto& name : class_devices(roots, "block", bdf)) add_blocks(roots, name, blocks);
  for (auto& name : class_devices(roots, "net", bdf)) add_interfaces(roots, name, interfaces);
  find_mounts(roots, blocks, found);
  find_btrfs(roots, blocks, found);
  find_holders(roots, blocks, found);
  find_routes(roots, interfaces, found);
  find_consoles(roots, bdf, found);
  find_virtual_functions(roots, bdf, found);
  find_users(roots, nodes_of(roots, bdf), found);
  return found;
}

}  // namespace kz
