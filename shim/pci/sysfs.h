// SPDX-License-Identifier: GPL-2.0-or-later
// What the kernel says of a PCI function: Documentation/ABI/testing/sysfs-bus-pci of the kernel.
//
// Each attribute is read once, with a bound on its length. A driver's attribute can hang on a dead device;
// only attributes of the PCI core are read here, but a caller that must not hang does this in a child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shim/base/bdf.h"

namespace kz {

// Where sysfs and the nodes are; another root in tests.
struct HostRoots {
  std::string sys = "/sys";
  std::string dev = "/dev";
  std::string proc = "/proc";
  std::string pci() const { return sys + "/bus/pci"; }
};

// The text of a file without its last newline, at most `limit` bytes. Throws Error(not_found, permission,
// io).
std::string read_attribute(const std::string& path, size_t limit = 4096);
// The same, nothing on any failure.
std::optional<std::string> try_attribute(const std::string& path, size_t limit = 4096);

struct PciLink {
  double gts = 0;      // GT/s of one lane
  unsigned width = 0;  // lanes
  auto operator<=>(const PciLink&) const = default;
};
std::string to_string(const PciLink& link);  // "16 GT/s x8"

struct PciResource {
  uint64_t start = 0, end = 0, flags = 0;  // flags: IORESOURCE_* of linux/ioport.h
  bool assigned() const { return end > start && (flags & kUnset) == 0; }
  bool memory() const { return (flags & 0x200) != 0; }
  bool io() const { return (flags & 0x100) != 0; }
  bool fixed() const { return (flags & 0x10) != 0; }  // not from the BAR: legacy or Enhanced Allocation
  uint64_t size() const { return end > start ? end - start + 1 : 0; }
  static constexpr uint64_t kUnset = 0x20000000;
};

// Totals since boot; nothing where the function has no AER.
struct AerTotals {
  std::optional<uint64_t> correctable, nonfatal, fatal;
  bool known() const { return correctable || nonfatal || fatal; }
  bool dirty() const { return correctable.value_or(0) + nonfatal.value_or(0) + fatal.value_or(0) != 0; }
};

// A user's way to the device: a node, or a network interface (no node).
struct DeviceNode {
  std::string path;       // "/dev/accel/accel0"; "eth0" for an interface
  std::string subsystem;  // "accel", "drm", "nvme", "block", "net", ...
  bool is_node = true;
  bool present = false;  // the node exists under /dev
  mode_t mode = 0;       // permission bits
  uid_t uid = 0;
  gid_t gid = 0;
};

struct PciInfo {
  Bdf bdf;
  uint16_t vendor = 0, device = 0;
  std::optional<uint16_t> subsystem_vendor, subsystem;
  uint32_t class_code = 0;  // 24 bits
  uint8_t revision = 0;
  std::string driver;  // empty: none bound
  std::optional<int> numa_node;
  std::optional<int> iommu_group;
  std::optional<PciLink> link_now, link_max;
  std::optional<Bdf> upstream;               // the bridge above
  std::optional<PciLink> upstream_link_max;  // what that bridge can do
  std::vector<PciResource> resources;        // BARs 0..5, ROM, then windows or VF BARs
  AerTotals aer;
  int enabled = 0;  // users of the device in the kernel
  std::vector<unsigned> msi_irqs;
  std::string power_state;  // "D0" ... or empty
  bool virtual_function = false;
  bool responds = true;  // false: the header reads as all ones or cannot be read
  std::vector<DeviceNode> nodes;
};

// Throws Error(not_found) where the kernel knows no such function. Nodes are looked up when `nodes` is set.
PciInfo read_pci_info(const Bdf& bdf, const HostRoots& roots = {}, bool nodes = true);
// Nodes and interfaces that belong to the function, by libudev (sysfs alone where there is no udev).
std::vector<DeviceNode> find_nodes(const PciInfo& info, const HostRoots& roots = {});
// Every function that the kernel knows, in order of address.
std::vector<Bdf> list_pci(const HostRoots& roots = {});

}  // namespace kz
