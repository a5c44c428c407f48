// SPDX-License-Identifier: GPL-2.0-or-later
// Which nodes under /dev belong to a PCI function, and which functions there are: libudev, or sysfs alone.
#include <fmt/format.h>
#include <libudev.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "shim/base/error.h"
#include "shim/pci/sysfs.h"

namespace kz {
namespace {

namespace fs = std::filesystem;

struct UdevCloser {
  void operator()(udev* p) const { udev_unref(p); }
  void operator()(udev_enumerate* p) const { udev_enumerate_unref(p); }
  void operator()(udev_device* p) const { udev_device_unref(p); }
};
template <class T>
using Udev = std::unique_ptr<T, UdevCloser>;

bool is_bdf(const std::string& name) {
  if (name.size() < 12) return false;
  try {
    parse_bdf(name);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// What hangs on a USB bus or a disk's partitions is not this function's own node.
bool foreign(const std::string& subsystem, const std::string& devtype) {
  static const std::set<std::string> skip = {"usb", "usbmisc", "input",       "hidraw",
                                             "pci", "bsg",     "scsi_generic"};
  return skip.contains(subsystem) || devtype == "partition";
}

std::string text(const char* s) { return s == nullptr ? std::string() : std::string(s); }

void add(std::vector<DeviceNode>& nodes, const std::string& path, const std::string& subsystem) {
  for (const auto& n : nodes)
    if (n.path == path) return;
  DeviceNode node;
  node.path = path;
  node.subsystem = subsystem;
  node.is_node = subsystem != "net";
  struct stat st {};
  if (node.is_node && ::stat(path.c_str(), &st) == 0) {
    node.present = true;
    node.mode = st.st_mode & 07777;
    node.uid = st.st_uid;
    node.gid = st.st_gid;
  }
  nodes.push_back(node);
}

// False where libudev cannot be used.
bool nodes_by_udev(const std::string& dir, std::vector<DeviceNode>& nodes) {
  Udev<udev> ctx(udev_new());
  std::error_code ec;
  fs::path real = fs::canonical(dir, ec);
  if (!ctx || ec) return false;
  Udev<udev_device> parent(udev_device_new_from_syspath(ctx.get(), real.c_str()));
  Udev<udev_enumerate> list(udev_enumerate_new(ctx.get()));
  if (!parent || !list || udev_enumerate_add_match_parent(list.get(), parent.get()) < 0 ||
      udev_enumerate_scan_devices(list.get()) < 0)
    return false;
  udev_list_entry* entry = nullptr;
  udev_list_entry_foreach(entry, udev_enumerate_get_list_entry(list.get())) {
    Udev<udev_device> dev(udev_device_new_from_syspath(ctx.get(), udev_list_entry_get_name(entry)));
    if (!dev) continue;
    // A bridge's descendants are not the bridge's: the nearest PCI function above must be this one.
    udev_device* above = udev_device_get_parent_with_subsystem_devtype(dev.get(), "pci", nullptr);
    if (above == nullptr || text(udev_device_get_syspath(above)) != real.string()) continue;
    if (udev_device_get_parent_with_subsystem_devtype(dev.get(), "usb", nullptr) != nullptr) continue;
    std::string subsystem = text(udev_device_get_subsystem(dev.get()));
    if (foreign(subsystem, text(udev_device_get_devtype(dev.get())))) continue;
    if (subsystem == "net")
      add(nodes, text(udev_device_get_sysname(dev.get())), subsystem);
    else if (const char* node = udev_device_get_devnode(dev.get()))
      add(nodes, node, subsystem);
  }
  return true;
}

// One line of a uevent file, such as DEVNAME=dri/card0.
std::string uevent_value(const std::string& uevent, const std::string& key) {
  size_t at = uevent.starts_with(key + "=") ? 0 : uevent.find("\n" + key + "=");
  if (at == std::string::npos) return {};
  at = uevent.find('=', at) + 1;
  return uevent.substr(at, uevent.find('\n', at) - at);
}

void nodes_by_sysfs(const fs::path& dir, const HostRoots& roots, int depth, std::vector<DeviceNode>& nodes) {
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec)) {
    std::string name = entry.path().filename();
    if (entry.is_symlink(ec) || !entry.is_directory(ec) || is_bdf(name) || name.starts_with("usb")) continue;
    std::string subsystem = fs::read_symlink(entry.path() / "subsystem", ec).filename();
    std::string uevent = try_attribute(entry.path() / "uevent").value_or("");
    if (!subsystem.empty() && !foreign(subsystem, uevent_value(uevent, "DEVTYPE"))) {
      std::string devname = uevent_value(uevent, "DEVNAME");
      if (subsystem == "net")
        add(nodes, name, subsystem);
      else if (!devname.empty())
        add(nodes, roots.dev + "/" + devname, subsystem);
    }
    if (depth > 0) nodes_by_sysfs(entry.path(), roots, depth - 1, nodes);
  }
}

// Nodes that sysfs does not tie to the function: VFIO's group and NVIDIA's.
void nodes_by_driver(const PciInfo& info, const HostRoots& roots, std::vector<DeviceNode>& nodes) {
  if (info.driver == "vfio-pci" && info.iommu_group)
    add(nodes, fmt::format("{}/vfio/{}", roots.dev, *info.iommu_group), "vfio");
  if (info.driver != "nvidia") return;
  auto facts =
      try_attribute(fmt::format("{}/driver/nvidia/gpus/{}/information", roots.proc, to_string(info.bdf)));
  constexpr std::string_view kMinor = "Device Minor:";
  size_t at = facts ? facts->find(kMinor) : std::string::npos;
  if (at == std::string::npos) return;
  at = facts->find_first_of("0123456789", at + kMinor.size());
  if (at == std::string::npos) return;
  add(nodes, fmt::format("{}/nvidia{}", roots.dev, std::strtoul(facts->c_str() + at, nullptr, 10)), "nvidia");
}

bool list_by_udev(std::vector<Bdf>& all) {
  Udev<udev> ctx(udev_new());
  if (!ctx) return false;
  Udev<udev_enumerate> list(udev_enumerate_new(ctx.get()));
  if (!list || udev_enumerate_add_match_subsystem(list.get(), "pci") < 0 ||
      udev_enumerate_scan_devices(list.get()) < 0)
    return false;
  udev_list_entry* entry = nullptr;
  udev_list_entry_foreach(entry, udev_enumerate_get_list_entry(list.get())) {
    std::string name = fs::path(udev_list_entry_get_name(entry)).filename();
    if (is_bdf(name)) all.push_back(parse_bdf(name));
  }
  return true;
}

}  // namespace

std::vector<DeviceNode> find_nodes(const PciInfo& info, const HostRoots& roots) {
  std::vector<DeviceNode> nodes;
  std::string dir = roots.pci() + "/devices/" + to_string(info.bdf);
  if (roots.sys != "/sys" || !nodes_by_udev(dir, nodes)) {
    std::error_code ec;
    fs::path real = fs::canonical(dir, ec);
    if (!ec) nodes_by_sysfs(real, roots, 5, nodes);
  }
  nodes_by_driver(info, roots, nodes);
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return nodes;
}

std::vector<Bdf> list_pci(const HostRoots& roots) {
  std::vector<Bdf> all;
  if (roots.sys != "/sys" || !list_by_udev(all) || all.empty()) {
    all.clear();
    std::error_code ec;
    for (const auto& entry : fs::directory_iterator(roots.pci() + "/devices", ec))
      if (is_bdf(entry.path().filename())) all.push_back(parse_bdf(entry.path().filename().string()));
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace kz
