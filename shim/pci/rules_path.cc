// SPDX-License-Identifier: GPL-2.0-or-later
// Rules of settings: within one function, and along the path from a function up to the root.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <algorithm>
#include <functional>

#include "shim/pci/tree.h"

namespace kz {
namespace {

using std::string_view;

// A setting, and the capability without which it must stay off.
struct Needs {
  string_view structure, control, enable, capability, supported, section;
};
constexpr string_view kExpress = "PCI Express";
constexpr Needs kNeeds[] = {
    {kExpress, "Device Control", "Extended Tag Field Enable", "Device Capabilities",
     "Extended Tag Field Supported", "PCIe r6.0 7.5.3.4"},
    {kExpress, "Device Control 2", "ARI Forwarding Enable", "Device Capabilities 2",
     "ARI Forwarding Supported", "PCIe r6.0 7.5.3.16"},
    {kExpress, "Device Control 2", "LTR Mechanism Enable", "Device Capabilities 2", "LTR Mechanism Supported",
     "PCIe r6.0 7.5.3.16"},
    {kExpress, "Device Control 2", "10-Bit Tag Requester Enable", "Device Capabilities 2",
     "10-Bit Tag Requester Supported", "PCIe r6.0 7.5.3.16"},
    {kExpress, "Link Control", "Enable Clock Power Management", "Link Capabilities", "Clock Power Management",
     "PCIe r6.0 7.5.3.7"},
    {"L1 PM Substates", "L1 PM Substates Control 1", "PCI-PM L1.2 Enable", "L1 PM Substates Capabilities",
     "PCI-PM L1.2 Supported", "PCIe r6.0 7.8.3.3"},
    {"L1 PM Substates", "L1 PM Substates Control 1", "PCI-PM L1.1 Enable", "L1 PM Substates Capabilities",
     "PCI-PM L1.1 Supported", "PCIe r6.0 7.8.3.3"},
    {"L1 PM Substates", "L1 PM Substates Control 1", "ASPM L1.2 Enable", "L1 PM Substates Capabilities",
     "ASPM L1.2 Supported", "PCIe r6.0 7.8.3.3"},
    {"L1 PM Substates", "L1 PM Substates Control 1", "ASPM L1.1 Enable", "L1 PM Substates Capabilities",
     "ASPM L1.1 Supported", "PCIe r6.0 7.8.3.3"},
    {"Advanced Error Reporting", "Advanced Error Capabilities and Control", "ECRC Generation Enable",
     "Advanced Error Capabilities and Control", "ECRC Generation Capable", "PCIe r6.0 7.8.4.7"},
    {"Advanced Error Reporting", "Advanced Error Capabilities and Control", "ECRC Check Enable",
     "Advanced Error Capabilities and Control", "ECRC Check Capable", "PCIe r6.0 7.8.4.7"},
    {"Process Address Space ID", "PASID Control", "Execute Permission Enable", "PASID Capability",
     "Execute Permission Supported", "PCIe r6.0 7.8.9.3"},
    {"Process Address Space ID", "PASID Control", "Privileged Mode Enable", "PASID Capability",
     "Privileged Mode Supported", "PCIe r6.0 7.8.9.3"},
    {"Access Control Services", "ACS Control", "Source Validation Enable", "ACS Capability",
     "Source Validation", "PCIe r5.0 7.7.8.3"},
    {"Access Control Services", "ACS Control", "Translation Blocking Enable", "ACS Capability",
     "Translation Blocking", "PCIe r5.0 7.7.8.3"},
    {"Access Control Services", "ACS Control", "P2P Request Redirect Enable", "ACS Capability",
     "P2P Request Redirect", "PCIe r5.0 7.7.8.3"},
    {"Access Control Services", "ACS Control", "P2P Completion Redirect Enable", "ACS Capability",
     "P2P Completion Redirect", "PCIe r5.0 7.7.8.3"},
    {"Access Control Services", "ACS Control", "Upstream Forwarding Enable", "ACS Capability",
     "Upstream Forwarding", "PCIe r5.0 7.7.8.3"},
};

// A number that must not be above another of the same function.
struct AtMost {
  string_view structure, reg, field, limit_reg, limit_field, section;
};
constexpr AtMost kAtMost[] = {
    {kExpress, "Device Control", "Max Payload Size", "Device Capabilities", "Max Payload Size Supported",
     "PCIe r6.0 7.5.3.4"},
    {"MSI", "Message Control", "Multiple Message Enable", "Message Control", "Multiple Message Capable",
     "PCIe r6.0 7.7.1.2"},
    {"Single Root I/O Virtualization", "NumVFs", "Number", "TotalVFs", "Number", "PCIe r6.0 9.3.3.7"},
    {"Single Root I/O Virtualization", "InitialVFs", "Number", "TotalVFs", "Number", "PCIe r6.0 9.3.3.5"},
};

const DecodedField* look(const TreeFunction& f, string_view structure, string_view reg, string_view field,
                         uint32_t& offset) {
  const DecodedStructure* s = f.structure(structure);
  const DecodedRegister* r = s ? s->find(reg) : nullptr;
  if (r) offset = r->offset;
  return r ? r->field(field) : nullptr;
}

void check_resizable(const TreeFunction& f, Findings& out) {
  const DecodedStructure* s = f.structure("Resizable BAR");
  if (!s) return;
  for (unsigned i = 0; i < 6; ++i) {
    const DecodedRegister *cap = s->find(fmt::format("Resizable BAR Capability {}", i)),
                          *ctl = s->find(fmt::format("Resizable BAR Control {}", i));
    if (!cap || !ctl) return;
    uint64_t sizes = cap->field("Sizes")->value, size = ctl->field("BAR Size")->value;
    if (size < 28 && (sizes >> size & 1) == 0)
      out.push_back({"PCIe r6.0 7.8.6.3", ctl->offset, hex(ctl->value),
                     fmt::format("the BAR size is set to {}, which is not among the supported {}",
                                 ctl->field("BAR Size")->text, cap->field("Sizes")->text)});
  }
}

bool is_lost(const TreeFunction& f) {
  return f.config->read32(PCI_VENDOR_ID) == 0xffffffff && f.config->read32(PCI_CLASS_REVISION) == 0xffffffff;
}

// ---- the path ----

class PathRules {
 public:
  PathRules(const TreeFunction& f, Findings& out) : f_(f), up_(*f.above), out_(out) {}

  void judge() {
    payload();
    bus_mastering();
    windows();
    if (direct_link()) {
      link();
      aspm();
    }
    latency_tolerance();
    tags();
  }

 private:
  // The two ends of one link: a port and the component below it.
  bool direct_link() const {
    auto type = up_.value(kExpress, "PCI Express Capabilities", "Device/Port Type");
    return type && (*type == PCI_EXP_TYPE_ROOT_PORT || *type == PCI_EXP_TYPE_DOWNSTREAM) &&
           f_.structure("PCI Express") && !f_.virtual_function;
  }

  void add(string_view rule, uint32_t offset, std::string got, std::string text, bool warning = false) {
    out_.push_back({std::string(rule), offset, std::move(got), std::move(text), warning});
  }
  std::optional<uint64_t> mine(string_view reg, string_view field, string_view s = kExpress) const {
    return f_.value(s, reg, field);
  }
  static std::string name(const TreeFunction& f) { return to_string(f.bdf); }
  uint32_t offset(string_view reg, string_view s = kExpress) const {
    const DecodedStructure* d = f_.structure(s);
    const DecodedRegister* r = d ? d->find(reg) : nullptr;
    return r ? r->offset : 0;
  }
  void each_port(const std::function<void(const TreeFunction&)>& visit) const {
    unsigned left = 256;  // bus numbers only grow on the way down: this bound is never met
    for (const TreeFunction* p = f_.above; p && left > 0; p = p->above, --left) visit(*p);
  }

  void payload() {
    auto size = mine("Device Control", "Max Payload Size"),
         read = mine("Device Control", "Max Read Request Size");
    if (!size || f_.virtual_function) return;
    each_port([&](const TreeFunction& port) {
      auto theirs = port.value(kExpress, "Device Control", "Max Payload Size");
      if (!theirs) return;
      std::string text = f_.text(kExpress, "Device Control", "Max Payload Size"),
                  port_text = port.text(kExpress, "Device Control", "Max Payload Size");
      if (*size > *theirs)
        add("PCIe r6.0 2.2.2", offset("Device Control"), text,
            fmt::format("sends payloads of up to {}, the port {} accepts {}: a larger TLP is malformed there",
                        text, name(port), port_text));
      else if (*size < *theirs && read && *read > *size)
        add("PCIe r6.0 2.2.2", offset("Device Control"), text,
            fmt::format("accepts payloads of up to {}, but asks for {} at once through the port {}, which "
                        "sends up to {}",
                        text, f_.text(kExpress, "Device Control", "Max Read Request Size"), name(port),
                        port_text),
            true);
    });
  }

  void bus_mastering() {
    if ((f_.config->read16(PCI_COMMAND) & PCI_COMMAND_MASTER) == 0) return;
    each_port([&](const TreeFunction& port) {
      if ((port.config->read16(PCI_COMMAND) & PCI_COMMAND_MASTER) == 0)
        add("PCIe r6.0 7.5.1.1.3", PCI_COMMAND, hex(f_.config->read16(PCI_COMMAND)),
            fmt::format("may master the bus, the bridge {} above may not forward its requests", name(port)));
    });
  }

  // A BAR that decodes must lie in a window of the bridge above.
  void windows() {
    if (f_.virtual_function || (f_.config->read16(PCI_COMMAND) & PCI_COMMAND_MEMORY) == 0) return;
    ConfigSpace& b = *up_.config;
    uint64_t base = static_cast<uint64_t>(b.read16(PCI_MEMORY_BASE) & 0xfff0u) << 16,
             limit = (static_cast<uint64_t>(b.read16(PCI_MEMORY_LIMIT) & 0xfff0u) << 16) + 0xfffff;
    uint64_t pbase = static_cast<uint64_t>(b.read16(PCI_PREF_MEMORY_BASE) & 0xfff0u) << 16,
             plimit = (static_cast<uint64_t>(b.read16(PCI_PREF_MEMORY_LIMIT) & 0xfff0u) << 16) + 0xfffff;
    if ((b.read16(PCI_PREF_MEMORY_BASE) & 0xf) == 1) {
      pbase |= static_cast<uint64_t>(b.read32(PCI_PREF_BASE_UPPER32)) << 32;
      plimit |= static_cast<uint64_t>(b.read32(PCI_PREF_LIMIT_UPPER32)) << 32;
    }
    for (const Bar& bar : decode_bars(*f_.config)) {
      if ((bar.kind != Bar::Kind::memory32 && bar.kind != Bar::Kind::memory64) || bar.address == 0) continue;
      uint64_t size = std::max<uint64_t>(f_.bar_sizes[bar.index], 1), last = bar.address + size - 1;
      bool in = (bar.address >= base && last <= limit) || (bar.address >= pbase && last <= plimit);
      if (!in)
        add("PCIe r6.0 7.5.1.3.8", PCI_BASE_ADDRESS_0 + 4 * bar.index, hex(bar.address),
            fmt::format("BAR{} is outside the memory windows of the bridge {} above ({:#x}-{:#x}, "
                        "prefetchable {:#x}-{:#x})",
                        bar.index, name(up_), base, limit, pbase, plimit));
    }
  }

  void link() {
    auto here = read_link_registers(*f_.config, f_.walk), there = read_link_registers(*up_.config, up_.walk);
    if (!here || !there) return;
    if (here->now != there->now)
      add("PCIe r6.0 7.5.3.8", here->status_offset, to_string(here->now),
          fmt::format("the link runs {}, the port {} at its other end says {}", to_string(here->now),
                      name(up_), to_string(there->now)));
    PciLink able{std::min(here->max.gts, there->max.gts), std::min(here->max.width, there->max.width)};
    if (here->now == there->now && (here->now.gts < able.gts || here->now.width < able.width))
      add("PCIe r6.0 7.5.3.8", here->status_offset, to_string(here->now),
          fmt::format("the link runs {}, both ends can {}", to_string(here->now), to_string(able)), true);
  }

  void aspm() {
    auto on = mine("Link Control", "ASPM Control"), able = mine("Link Capabilities", "ASPM Support");
    auto port_on = up_.value(kExpress, "Link Control", "ASPM Control"),
         port_able = up_.value(kExpress, "Link Capabilities", "ASPM Support");
    if (!on || !able || !port_on || !port_able) return;
    uint64_t beyond = *on & ~*port_able & 2;
    if (beyond != 0)
      add("PCIe r6.0 5.4.1.4", offset("Link Control"), hex(*on),
          fmt::format("L1 is enabled, the port {} above does not support it", name(up_)));
    else if (((*on ^ *port_on) & 2) != 0 && f_.bdf.function == 0)
      add("PCIe r6.0 5.4.1.4", offset("Link Control"), hex(*on),
          fmt::format("L1 is {} here and {} in the port {} above", *on & 2 ? "enabled" : "off",
                      *port_on & 2 ? "enabled" : "off", name(up_)),
          true);
    auto clock = mine("Link Control", "Common Clock Configuration"),
         port_clock = up_.value(kExpress, "Link Control", "Common Clock Configuration");
    if (clock && port_clock && *clock != *port_clock && f_.bdf.function == 0)
      add("PCIe r6.0 7.5.3.7", offset("Link Control"), hex(*clock),
          fmt::format("Common Clock Configuration is {} here and {} in the port {}: exit latencies are wrong",
                      *clock, *port_clock, name(up_)),
          true);
    constexpr uint64_t exit_us[] = {1, 2, 4, 8, 16, 32, 64, 128},
                       accept_us[] = {1, 2, 4, 8, 16, 32, 64, ~uint64_t{0}};
    auto exit = mine("Link Capabilities", "L1 Exit Latency"),
         port_exit = up_.value(kExpress, "Link Capabilities", "L1 Exit Latency"),
         accept = mine("Device Capabilities", "L1 Acceptable Latency");
    auto type = mine("PCI Express Capabilities", "Device/Port Type");
    bool endpoint = type && (*type == PCI_EXP_TYPE_ENDPOINT || *type == PCI_EXP_TYPE_LEG_END);
    if (endpoint && (*on & *port_on & 2) != 0 && exit && port_exit && accept &&
        std::max(exit_us[*exit], exit_us[*port_exit]) > accept_us[*accept])
      add("PCIe r6.0 5.4.1.4", offset("Device Capabilities"),
          f_.text(kExpress, "Device Capabilities", "L1 Acceptable Latency"),
          fmt::format(
              "L1 is enabled on a link that takes up to {} us to leave it; the function accepts {} us",
              std::max(exit_us[*exit], exit_us[*port_exit]), accept_us[*accept]),
          true);
    constexpr string_view kSubstates = "L1 PM Substates";
    for (string_view state : {"PCI-PM L1.2", "PCI-PM L1.1", "ASPM L1.2", "ASPM L1.1"}) {
      auto a = mine("L1 PM Substates Control 1", fmt::format("{} Enable", state), kSubstates);
      if (!a || *a == 0) continue;
      auto b = up_.value(kSubstates, "L1 PM Substates Control 1", fmt::format("{} Enable", state));
      if (b.value_or(0) == 0)
        add("PCIe r6.0 5.5.4", offset("L1 PM Substates Control 1", kSubstates), "on",
            fmt::format("{} is enabled here and not in the port {} above", state, name(up_)));
      if (state == "ASPM L1.2" && mine("Device Control 2", "LTR Mechanism Enable").value_or(1) == 0)
        add("PCIe r6.0 5.5.1.2", offset("L1 PM Substates Control 1", kSubstates), "on",
            "ASPM L1.2 is enabled and Latency Tolerance Reporting is not", true);
    }
  }

  void latency_tolerance() {
    if (mine("Device Control 2", "LTR Mechanism Enable").value_or(0) == 0) return;
    each_port([&](const TreeFunction& port) {
      if (port.structure(kExpress) &&
          port.value(kExpress, "Device Control 2", "LTR Mechanism Enable").value_or(0) == 0)
        add("PCIe r6.0 6.18", offset("Device Control 2"), "on",
            fmt::format("sends LTR messages, which the port {} above treats as Unsupported Requests: LTR is "
                        "not enabled there",
                        name(port)));
    });
  }

  void tags() {
    if (mine("Device Control 2", "10-Bit Tag Requester Enable").value_or(0) == 0) return;
    each_port([&](const TreeFunction& port) {
      auto type = port.value(kExpress, "PCI Express Capabilities", "Device/Port Type");
      if (type && *type == PCI_EXP_TYPE_ROOT_PORT &&
          port.value(kExpress, "Device Capabilities 2", "10-Bit Tag Completer Supported").value_or(0) == 0)
        add("PCIe r6.0 2.2.6.2", offset("Device Control 2"), "on",
            fmt::format("sends 10-bit tags, the root port {} completes none", name(port)));
    });
  }

  const TreeFunction& f_;
  const TreeFunction& up_;
  Findings& out_;
};

}  // namespace

Findings check_settings(const TreeFunction& f) {
  Findings out;
  if (is_lost(f) || f.virtual_function) return out;
  for (const Needs& n : kNeeds) {
    uint32_t at = 0, unused = 0;
    const DecodedField *on = look(f, n.structure, n.control, n.enable, at),
                       *able = look(f, n.structure, n.capability, n.supported, unused);
    if (on && able && on->value != 0 && able->value == 0)
      out.push_back({std::string(n.section), at, "on",
                     fmt::format("{} is set without {}", n.enable, n.supported), true});
  }
  for (const AtMost& n : kAtMost) {
    uint32_t at = 0, unused = 0;
    const DecodedField *have = look(f, n.structure, n.reg, n.field, at),
                       *limit = look(f, n.structure, n.limit_reg, n.limit_field, unused);
    if (have && limit && have->value > limit->value)
      out.push_back({std::string(n.section), at, have->text,
                     fmt::format("{} {} ({}) is above {} {} ({})", n.reg, n.field, have->text, n.limit_reg,
                                 n.limit_field, limit->text)});
  }
  // ASPM states beyond those supported (7.5.3.7).
  uint32_t at = 0, unused = 0;
  const DecodedField *on = look(f, kExpress, "Link Control", "ASPM Control", at),
                     *able = look(f, kExpress, "Link Capabilities", "ASPM Support", unused);
  if (on && able && (on->value & ~able->value) != 0)
    out.push_back({"PCIe r6.0 7.5.3.7", at, on->text,
                   fmt::format("ASPM is set to {}, the link supports {}", on->text, able->text), true});
  check_resizable(f, out);
  return out;
}

Findings check_path(const TreeFunction& f) {
  Findings out;
  if (!f.above || is_lost(f) || is_lost(*f.above)) return out;
  PathRules(f, out).judge();
  return out;
}

Findings check_function(const TreeFunction& f) {
  ConfigSpace& c = *f.config;
  if (is_lost(f)) {
    return {{"PCIe r6.0 2.3.2", 0, "0xffffffff",
             "the header reads as all ones: the function is lost, or nothing is there"}};
  }
  Findings out;
  auto take = [&](Findings more) { std::ranges::move(more, std::back_inserter(out)); };
  take(check_header(c, f.walk, f.virtual_function));
  take(check_chains(f.walk));
  take(check_duplicates(f.walk));
  take(check_required(c, f.walk, f.virtual_function));
  take(check_bars(c, f.walk));
  take(check_msix(c, f.walk, f.bar_sizes, f.virtual_function));
  take(check_link(c, f.walk));
  take(check_serial(c, f.walk));
  take(check_aer_status(c, f.walk));
  take(check_settings(f));
  take(check_path(f));
  return out;
}

}  // namespace kz
