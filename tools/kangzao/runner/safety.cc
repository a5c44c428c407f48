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
  std::string name, destination;
  for (std::string line; std::getline(routes, line);)
    if (std::istringstream(line) >> name >> destination && destination == "00000000" &&
        interfaces.contains(name))
      found.push_back(name + " carries the default route");
  for (std::string line; std::getline(routes6, line);) {
    name = line.substr(line.find_last_of(" \t") + 1);
    if (line.starts_with("00000000000000000000000000000000 00") && interfaces.contains(name))
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
  return found;
}

}  // namespace kz
