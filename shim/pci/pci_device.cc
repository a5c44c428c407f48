// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/pci_device.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/config_dump.h"
#include "shim/pci/config_live.h"
#include "shim/pci/discovery.h"
#include "shim/pci/function.h"
#include "shim/pci/rules.h"
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
    throw Error(
        {Errc::unsupported, "use", identity_.uri, fmt::format("this backend offers no {}", what), {}, 0});
  }
  Identity identity_;
  Capabilities caps_;
  std::unique_ptr<ConfigSpace> config_;
};

// Everything that only a driver of the device itself could do.
void refuse_the_rest(Capabilities& caps, const std::string& why) {
  for (int i = 0; i <= static_cast<int>(Cap::reset_firmware); ++i) {
    Cap cap = static_cast<Cap>(i);
    if (!caps.has(cap) && !caps.blocked.contains(cap)) caps.why_not.try_emplace(cap, why);
  }
}

Capabilities live_capabilities(const LiveConfig& config, const PciInfo& info) {
  Capabilities caps = function_capabilities(config, info);
  caps.have.erase(Cap::config_write);
  caps.blocked.erase(Cap::config_write);
  caps.why_not[Cap::config_write] = "pci: only looks at a device";
  refuse_the_rest(caps, "pci: only looks at a device; its own backend or adapter can use it");
  return caps;
}

Capabilities dump_capabilities(ConfigSpace& config) {
  Capabilities caps;
  caps.have = {Cap::config_read};
  CapabilityWalk walk = walk_capabilities(config);
  bool conventional = config.size() >= 256 && standard_chain_seen(walk) &&
                      !find_capability(walk, PCI_CAP_ID_EXP, false) &&
                      !find_capability(walk, PCI_CAP_ID_PCIX, false);
  if (config.size() >= 4096)
    caps.have.insert(Cap::config_extended);
  else if (conventional)
    caps.why_not[Cap::config_extended] = "conventional PCI function: 256 bytes of configuration space";
  else
    caps.blocked[Cap::config_extended] = fmt::format(
        "the dump holds {} bytes of the function; take it with lspci -xxxx as root", config.size());
  refuse_the_rest(caps, "a dump is a recording of configuration space");
  return caps;
}

const DumpedFunction& choose(const std::vector<DumpedFunction>& functions, const Uri& uri) {
  std::string there;
  for (size_t i = 0; i < functions.size() && i < 4; ++i)
    there += (i > 0 ? ", " : "") + to_string(functions[i].bdf);
  if (functions.size() > 4) there += fmt::format(" and {} more", functions.size() - 4);
  auto wanted = uri.options.find("bdf");
  if (wanted == uri.options.end()) {
    if (functions.size() == 1) return functions[0];
    throw Error({Errc::usage, "open dump", uri.path, "it holds " + there,
                 fmt::format("name one: dump:{},bdf={}", uri.path, to_string(functions[0].bdf)), 0});
  }
  Bdf bdf = parse_bdf(wanted->second);
  for (const auto& f : functions)
    if (f.bdf == bdf) return f;
  throw Error({Errc::not_found, "open dump", uri.path, fmt::format("no {} in it", to_string(bdf)),
               "it holds " + there, 0});
}

}  // namespace

std::unique_ptr<Device> open_pci(const Uri& uri, const OpenOptions&) {
  only_options(uri, {});
  Bdf bdf = parse_bdf(uri.path);
  if (!try_attribute(HostRoots{}.pci() + "/devices/" + to_string(bdf) + "/vendor", 64)) {
    std::string near = nearest_functions(bdf);
    throw Error({Errc::not_found, "open", "PCI function " + to_string(bdf), "there is none at this address",
                 near.empty() ? "this machine shows no PCI functions at all"
                              : "nearest: " + near + "; kangzao ls --all lists every one",
                 0});
  }
  PciInfo info = read_pci_info(bdf);
  auto config = std::make_unique<LiveConfig>(bdf);
  if (config->all_ones())
    throw Error({Errc::gone, "open", "PCI function " + to_string(bdf),
                 "its configuration space reads as all ones: it does not answer",
                 "check power and link; see the kernel log; remove and rescan it", 0});
  Identity id = identify_function(uri.text, info, *config);
  Capabilities caps = live_capabilities(*config, info);
  return std::make_unique<ReadOnlyDevice>(std::move(id), std::move(caps), std::move(config));
}

std::unique_ptr<Device> open_dump(const Uri& uri, const OpenOptions&) {
  only_options(uri, {"bdf"});
  auto functions = read_pci_dump(uri.path);
  const DumpedFunction& found = choose(functions, uri);
  auto config = std::make_unique<BytesConfig>(found.bytes, uri.path + " " + to_string(found.bdf));
  if (std::all_of(found.bytes.begin(), found.bytes.begin() + 12, [](uint8_t b) { return b == 0xff; }))
    throw Error(
        {Errc::gone,
         "open dump",
         uri.path,
         fmt::format("{} reads as all ones: it did not answer when this was taken", to_string(found.bdf)),
         {},
         0});
  Identity id = identify_header(uri.text, found.bdf, *config);
  id.driver = found.driver;
  set_name(id);
  Capabilities caps = dump_capabilities(*config);
  return std::make_unique<ReadOnlyDevice>(std::move(id), std::move(caps), std::move(config));
}

}  // namespace kz
