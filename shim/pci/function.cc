// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/function.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>
#include <unistd.h>

#include "shim/base/error.h"
#include "shim/pci/libpci.h"
#include "shim/pci/rules.h"

namespace kz {
namespace {

std::string lockdown(const HostRoots& roots) {
  auto text = try_attribute(roots.sys + "/kernel/security/lockdown", 256).value_or("");
  for (const char* mode : {"integrity", "confidentiality"})
    if (text.find(fmt::format("[{}]", mode)) != std::string::npos) return mode;
  return {};
}

}  // namespace

void set_name(Identity& id) {
  PciNames names;
  id.name = fmt::format("{:04x}:{:04x}", id.vendor, id.device);
  for (const std::string& part : {names.vendor(id.vendor), names.device(id.vendor, id.device)})
    if (!part.empty()) id.name += " " + part;
}

Identity identify_header(const std::string& uri, const Bdf& bdf, ConfigSpace& c) {
  Identity id;
  id.uri = uri;
  id.bdf = bdf;
  id.vendor = c.read16(PCI_VENDOR_ID);
  id.device = c.read16(PCI_DEVICE_ID);
  id.revision = c.read8(PCI_REVISION_ID);
  id.class_code = c.read32(PCI_CLASS_REVISION) >> 8;
  if ((c.read8(PCI_HEADER_TYPE) & 0x7f) == PCI_HEADER_TYPE_NORMAL) {
    id.subsystem_vendor = c.read16(PCI_SUBSYSTEM_VENDOR_ID);
    id.subsystem = c.read16(PCI_SUBSYSTEM_ID);
  }
  id.serial = serial_of(c);
  return id;
}

Identity identify_function(const std::string& uri, const PciInfo& info, ConfigSpace& config) {
  Identity id = identify_header(uri, info.bdf, config);
  id.vendor = info.vendor;  // a virtual function's own read FFFFh (PCIe r6.0, 9.3.4.1.1)
  id.device = info.device;
  id.driver = info.driver;
  set_name(id);
  return id;
}

std::string why_config_is_read_only(const Bdf& bdf, const HostRoots& roots) {
  if (std::string mode = lockdown(roots); !mode.empty())
    return fmt::format("the kernel is locked down ({})", mode);
  std::string file = roots.pci() + "/devices/" + to_string(bdf) + "/config";
  return ::access(file.c_str(), W_OK) == 0 ? "" : "this user may not write configuration space; run as root";
}

Capabilities function_capabilities(const LiveConfig& config, const PciInfo& info) {
  Capabilities caps;
  caps.have = {Cap::config_read, Cap::sysfs};
  if (config.size() == 4096)
    caps.have.insert(Cap::config_extended);
  else if (config.full_size() < 4096)
    caps.why_not[Cap::config_extended] = "conventional configuration space: 256 bytes";
  else
    caps.blocked[Cap::config_extended] =
        fmt::format("this user sees {} of 4096 bytes of configuration space; run as root", config.size());
  if (info.nodes.empty())
    caps.why_not[Cap::node] = "no device node or interface belongs to it";
  else
    caps.have.insert(Cap::node);
  if (std::string why = why_config_is_read_only(info.bdf); why.empty())
    caps.have.insert(Cap::config_write);
  else
    caps.blocked[Cap::config_write] = why;
  return caps;
}

}  // namespace kz
