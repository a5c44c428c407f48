// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/safety.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace kz {
namespace fs = std::filesystem;
namespace {

// Does the resolved path of a class device lead through the PCI function?
bool below(const fs::path& link, const std::string& bdf) {
  std::error_code ec;
  fs::path real = fs::canonical(link, ec);
  if (ec) return false;
  for (auto& part : real)
    if (part == bdf) return true;
  return false;
}

std::vector<std::string> class_devices(const SystemRoots& roots, const std::string& cls, const std::string& bdf) {
  std::vector<std::string> out;
  std::error_code ec;
  for (auto& entry : fs::directory_iterator(roots.sys + "/class/" + cls, ec))
    if (below(entry.path(), bdf)) out.push_back(entry.path().filename());
  return out;
}

// A block device, its partitions, and what is stacked on it (dm, md, loop by holders).
void add_holders(const SystemRoots& roots, const std::string& name, std::set<std::string>& out) {
  if (!out.insert(name).second) return;
  std::error_code ec;
  for (auto& holder : fs::directory_iterator(roots.sys + "/class/block/" + name + "/holders", ec))
    add_holders(roots, holder.path().filename(), out);
}

std::string device_name(const std::string& node) {
  std::error_code ec;
  fs::path real = fs::canonical(node, ec);
  return (ec ? fs::path(node) : real).filename();
}

}  // namespace

std::vector<std::string> inhabitants(const Bdf& address, const SystemRoots& roots) {
  std::string bdf = to_string(address);
  std::vector<std::string> found;
  std::set<std::string> blocks;
  for (auto& name : class_devices(roots, "block", bdf)) add_holders(roots, name, blocks);

  std::ifstream mounts(roots.proc + "/mounts"), swaps(roots.proc + "/swaps"), routes(roots.proc + "/net/route"),
      routes6(roots.proc + "/net/ipv6_route"), consoles(roots.proc + "/consoles");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string node, where;
    fields >> node >> where;
    if (node.starts_with("/dev/") && blocks.contains(device_name(node))) found.push_back(fmt::format("{} is mounted on {}", node, where));
  }
  for (std::string line; std::getline(swaps, line);) {
    std::string node = line.substr(0, line.find_first_of(" \t"));
    if (node.starts_with("/dev/") && blocks.contains(device_name(node))) found.push_back(node + " is swap");
  }
  auto nets = class_devices(roots, "net", bdf);
  std::set<std::string> interfaces(nets.begin(), nets.end());
  for (std::string line; std::getline(routes, line);) {
    std::istringstream fields(line);
    std::string name, destination;
    fields >> name >> destination;
    if (destination == "00000000" && interfaces.contains(name)) found.push_back(name + " carries the default route");
  }
  for (std::string line; std::getline(routes6, line);) {
    std::string name = line.substr(line.find_last_of(" \t") + 1);
    if (line.starts_with("00000000000000000000000000000000 00") && interfaces.contains(name))
      found.push_back(name + " carries the IPv6 default route");
  }
  std::set<std::string> ttys;
  for (auto& name : class_devices(roots, "tty", bdf)) ttys.insert(name);
  for (std::string line; std::getline(consoles, line);)
    if (std::string name = line.substr(0, line.find(' ')); ttys.contains(name)) found.push_back(name + " is a console");
  if (!class_devices(roots, "graphics", bdf).empty()) found.push_back("a frame buffer console runs on it");
  return found;
}

}  // namespace kz
