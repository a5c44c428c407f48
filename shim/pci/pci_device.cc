// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/pci_device.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/config_dump.h"
#include "shim/pci/config_live.h"
#include "shim/pci/sysfs.h"

namespace kz {
namespace {

// A device that is only looked at. Everything else throws Error(unsupported).
class ReadOnlyDevice final : public Device {
 public:
  ReadOnlyDevice(Identity identity, Capabilities caps, std::unique_ptr<ConfigSpace> config)
      : identity_(std::move(identity)), caps_(std::move(caps)), config_(std::move(config)) {}

  const Identity& identity() const override { return identity_; }
  const Capabilities& capabilities() const override { return caps_; }
  ConfigSpace& config() override { return *config_; }
  Telemetry telemetry() override { no("telemetry"); }
  uint32_t read_register(uint32_t) override { no("registers"); }
  void write_register(uint32_t, uint32_t) override { no("registers"); }
  void wait_register(uint32_t, uint32_t, uint32_t, Deadline) override { no("registers"); }
  void reset(ResetKind, Deadline) override { no("reset"); }
  void recover(Deadline) override {}
  std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec&) override { no("DMA"); }
  std::unique_ptr<Context> create_context() override { no("contexts"); }
  Context& root_context() override { no("contexts"); }
  HbmAddr physical(const Context&, HbmAddr) override { no("HBM"); }
  Aperture& aperture() override { no("an aperture"); }
  std::vector<uint64_t> interrupt_counts() override { no("interrupts"); }

 private:
  [[noreturn]] void no(const char* what) const {
    throw Error({Errc::unsupported, "use", identity_.uri, fmt::format("this backend offers no {}", what), "", 0});
  }
  Identity identity_;
  Capabilities caps_;
  std::unique_ptr<ConfigSpace> config_;
};

// Reading a serial number follows the capability chain of whatever is there; faults in it are the tests' business.
std::string serial_of(ConfigSpace& config) {
  for (const PciCapability& cap : walk_capabilities(config).found) {
    if (!cap.extended || cap.id != PCI_EXT_CAP_ID_DSN || cap.offset + 12u > config.size()) continue;
    uint64_t dsn = config.read32(cap.offset + 4u) | static_cast<uint64_t>(config.read32(cap.offset + 8u)) << 32;
    if (dsn == 0) return {};
    std::string text;
    for (int byte = 7; byte >= 0; --byte) text += fmt::format("{:02x}{}", dsn >> (8 * byte) & 0xff, byte > 0 ? "-" : "");
    return text;
  }
  return {};
}

Identity identify(const std::string& uri, const Bdf& bdf, ConfigSpace& c) {
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
  PciNames names = pci_names(id.vendor, id.device, id.class_code);
  id.name = names.vendor + " " + names.device;
  return id;
}

void describe_config(const ConfigSpace& config, Capabilities& caps, bool live) {
  caps.have.insert(Cap::config_read);
  if (config.size() >= 4096) caps.have.insert(Cap::config_extended);
  else if (live && config.size() == 64) caps.blocked[Cap::config_extended] = "only root may read more than 64 bytes of config space";
  else caps.why_not[Cap::config_extended] = fmt::format("config space has {} bytes", config.size());
}

}  // namespace

std::unique_ptr<Device> open_pci(const Uri& uri, const OpenOptions&) {
  Bdf bdf = parse_bdf(uri.path);
  PciFunction f = read_function(bdf);
  auto config = open_live_config(bdf);
  if (config->read32(PCI_VENDOR_ID) == 0xffffffff && !f.virtual_function)
    throw Error({Errc::gone, "open", "PCI device " + to_string(bdf), "config space reads all ones: it does not answer",
                 "check power and link; 'kangzao ls' shows what the kernel remembers", 0});
  Identity id = identify(uri.text, bdf, *config);
  if (f.virtual_function) {  // ids of a virtual function read all ones (SR-IOV, PCI Express r6.0, 9.3.4.1)
    id.vendor = f.vendor;
    id.device = f.device;
  }
  id.driver = f.driver;
  Capabilities caps;
  describe_config(*config, caps, true);
  caps.have.insert(Cap::sysfs);
  if (!f.nodes.empty()) caps.have.insert(Cap::node);
  else caps.why_not[Cap::node] = "no device node belongs to it";
  return std::make_unique<ReadOnlyDevice>(std::move(id), std::move(caps), std::move(config));
}

std::unique_ptr<Device> open_dump(const Uri& uri, const OpenOptions&) {
  auto functions = read_pci_dump(uri.path);
  auto wanted = uri.options.find("bdf");
  const DumpedFunction* found = functions.size() == 1 && wanted == uri.options.end() ? &functions[0] : nullptr;
  std::string there;
  for (auto& f : functions) {
    if (wanted != uri.options.end() && f.bdf == parse_bdf(wanted->second)) found = &f;
    if (there.size() < 120) there += (there.empty() ? "" : ", ") + to_string(f.bdf);
  }
  if (found == nullptr)
    throw Error({wanted == uri.options.end() ? Errc::usage : Errc::not_found, "open", uri.path,
                 wanted == uri.options.end() ? "it holds several functions" : "no function " + wanted->second + " in it",
                 "name one: ,bdf=" + there, 0});
  auto config = std::make_unique<BytesConfig>(found->bytes, uri.path);
  Identity id = identify(uri.text, found->bdf, *config);
  id.driver = found->driver;
  Capabilities caps;
  describe_config(*config, caps, false);
  caps.why_not[Cap::sysfs] = "a dump has no sysfs";
  caps.why_not[Cap::node] = "a dump has no device node";
  return std::make_unique<ReadOnlyDevice>(std::move(id), std::move(caps), std::move(config));
}

}  // namespace kz
