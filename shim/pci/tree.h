// SPDX-License-Identifier: GPL-2.0-or-later
// Functions of one dump or machine, with the bridge above each: what rules of a path need.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shim/base/bdf.h"
#include "shim/pci/registers.h"
#include "shim/pci/rules.h"

namespace kz {

struct TreeFunction {
  Bdf bdf;
  std::string title;  // of a dump, or from pci.ids
  std::unique_ptr<ConfigSpace> config;
  CapabilityWalk walk;
  std::vector<DecodedStructure> decoded;
  bool virtual_function = false;
  std::array<uint64_t, 6> bar_sizes{};  // bytes, 0 unknown
  const TreeFunction* above =
      nullptr;  // the bridge whose secondary bus this is on; none: root complex or not in the set

  // 0 and nothing where the register is not there or not seen.
  const DecodedStructure* structure(std::string_view name) const;
  std::optional<uint64_t> value(std::string_view structure, std::string_view reg,
                                std::string_view field) const;
  std::string text(std::string_view structure, std::string_view reg, std::string_view field) const;
};

class PciTree {
 public:
  // Walks and decodes each; `above` is found by bus numbers.
  explicit PciTree(std::vector<TreeFunction> functions);
  const std::vector<TreeFunction>& functions() const { return functions_; }
  const TreeFunction* find(const Bdf& bdf) const;

 private:
  std::vector<TreeFunction> functions_;
};

// Of a dump, or of this machine (all that the kernel knows). Throw as read_pci_dump and LiveConfig; a live
// function that vanishes meanwhile or cannot be opened is left out.
PciTree tree_of_dump(const std::string& path);
PciTree tree_of_host(const HostRoots& roots = {});

// What is switched on in one function without being supported there, or beyond a limit that the function
// states.
Findings check_settings(const TreeFunction& f);
// A function against the ports above it up to the root: payload, link, ASPM, LTR, tags, windows.
Findings check_path(const TreeFunction& f);
// Every rule that can be judged from configuration space alone.
Findings check_function(const TreeFunction& f);

}  // namespace kz
