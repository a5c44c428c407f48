// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/tree.h"

#include <linux/pci_regs.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/config_dump.h"
#include "shim/pci/config_live.h"
#include "shim/pci/libpci.h"

namespace kz {

const DecodedStructure* TreeFunction::structure(std::string_view name) const {
  auto it = std::ranges::find(decoded, name, &DecodedStructure::name);
  return it == decoded.end() ? nullptr : &*it;
}

namespace {

const DecodedField* field_of(const TreeFunction& f, std::string_view structure, std::string_view reg,
                             std::string_view field) {
  const DecodedStructure* s = f.structure(structure);
  const DecodedRegister* r = s ? s->find(reg) : nullptr;
  return r ? r->field(field) : nullptr;
}

bool all_ones(ConfigSpace& config) {
  return config.read32(PCI_VENDOR_ID) == 0xffffffff && config.read32(PCI_CLASS_REVISION) == 0xffffffff;
}

}  // namespace

std::optional<uint64_t> TreeFunction::value(std::string_view structure, std::string_view reg,
                                            std::string_view field) const {
  const DecodedField* f = field_of(*this, structure, reg, field);
  return f ? std::optional(f->value) : std::nullopt;
}

std::string TreeFunction::text(std::string_view structure, std::string_view reg,
                               std::string_view field) const {
  const DecodedField* f = field_of(*this, structure, reg, field);
  return f ? f->text : "";
}

PciTree::PciTree(std::vector<TreeFunction> functions) : functions_(std::move(functions)) {
  for (auto& f : functions_) {
    f.walk = walk_capabilities(*f.config);
    f.decoded = decode_function(*f.config, f.walk);
  }
  for (auto& f : functions_)
    for (const auto& bridge : functions_) {
      if (&bridge == &f || bridge.bdf.domain != f.bdf.domain || all_ones(*bridge.config)) continue;
      if ((bridge.config->read8(PCI_HEADER_TYPE) & 0x7f) != PCI_HEADER_TYPE_BRIDGE) continue;
      uint8_t secondary = bridge.config->read8(PCI_SECONDARY_BUS);
      // A virtual function can be on a bus behind that of its physical function (9.2.1.2).
      bool here = secondary == f.bdf.bus || (f.virtual_function && secondary < f.bdf.bus &&
                                             f.bdf.bus <= bridge.config->read8(PCI_SUBORDINATE_BUS));
      // Above means a lower bus: bridges that were never configured all say 0.
      if (here && secondary != 0 && bridge.bdf.bus < secondary &&
          (!f.above || f.above->bdf.bus < bridge.bdf.bus))
        f.above = &bridge;
    }
}

const TreeFunction* PciTree::find(const Bdf& bdf) const {
  auto it = std::ranges::find(functions_, bdf, &TreeFunction::bdf);
  return it == functions_.end() ? nullptr : &*it;
}

PciTree tree_of_dump(const std::string& path) {
  std::vector<TreeFunction> functions;
  for (auto& d : read_pci_dump(path)) {
    TreeFunction f;
    f.bdf = d.bdf;
    f.title = d.title;
    f.config = std::make_unique<BytesConfig>(std::move(d.bytes), path + ": " + to_string(d.bdf));
    // Ids of all ones in a header that is not all ones: 9.3.4.1.1
    f.virtual_function = f.config->read32(PCI_VENDOR_ID) == 0xffffffff && !all_ones(*f.config);
    functions.push_back(std::move(f));
  }
  return PciTree(std::move(functions));
}

PciTree tree_of_host(const HostRoots& roots) {
  std::vector<TreeFunction> functions;
  PciNames names;
  for (const Bdf& bdf : list_pci(roots)) {
    try {
      PciInfo info = read_pci_info(bdf, roots, false);
      TreeFunction f;
      f.bdf = bdf;
      f.title = fmt::format("{}: {} {} [{:04x}:{:04x}]", names.class_name(info.class_code),
                            names.vendor(info.vendor), names.device(info.vendor, info.device), info.vendor,
                            info.device);
      f.virtual_function = info.virtual_function;
      for (size_t i = 0; i < f.bar_sizes.size() && i < info.resources.size(); ++i)
        f.bar_sizes[i] = info.resources[i].size();
      // What is read must not change while rules compare it.
      LiveConfig live(bdf, false, roots.pci());
      std::vector<uint8_t> bytes;
      for (uint32_t at = 0; at + 4 <= live.size(); at += 4)
        for (uint32_t v = live.read32(at), i = 0; i < 4; ++i)
          bytes.push_back(static_cast<uint8_t>(v >> 8 * i));
      f.config = std::make_unique<BytesConfig>(std::move(bytes), to_string(bdf));
      functions.push_back(std::move(f));
    } catch (const Error& e) {
      if (e.code() != Errc::not_found && e.code() != Errc::gone && e.code() != Errc::permission &&
          e.code() != Errc::io)
        throw;
    }
  }
  return PciTree(std::move(functions));
}

}  // namespace kz
