// SPDX-License-Identifier: GPL-2.0-or-later
// The kernels of the lab: by role from the cache of extracted roots, or one that somebody built.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kz::lab {

struct Kernel {
  std::string name;     // its role, or "given"
  std::string release;  // as uname -r tells it
  std::string image;    // vmlinuz or bzImage
  std::string modules;  // the folder of modules.dep; empty: none
  std::string build;    // a given kernel's build tree; empty: modules are built inside the role's root
  uint64_t hash = 0;    // of what it was built from and where: two kernels of one release differ in it
  bool from_root() const { return name != "given"; }
};

// stable-1, stable, backports, sid; debug kernels: stable-1-debug, backports-debug.
const std::vector<std::string>& kernel_roles();
const std::vector<std::string>& stock_roles();

// A role whose root is in the cache. Throws Error(usage) for an unknown role, Error(not_found).
Kernel find_kernel(const std::string& role);

// `image`: a bzImage. `modules`: empty, or a folder with modules.dep, or with lib/modules/RELEASE below it;
// its `build` leads to the build tree. Throws Error(usage) for what is no kernel image or no such folder.
Kernel given_kernel(const std::string& image, const std::string& modules);

// The release in the boot header of an x86 bzImage; empty for anything else.
// Linux, Documentation/arch/x86/boot.rst: "HdrS" at 0x202, kernel_version at 0x20e, counted from 0x200.
std::string release_of_image(const std::string& image);

// Modules of a kernel with what they depend on, as modules.dep tells it.
class ModuleTree {
 public:
  explicit ModuleTree(std::string folder);  // empty, or without modules.dep: a tree of no modules
  // Paths below the folder, dependencies first. Empty: no such module (built in, or not built).
  std::vector<std::string> with_dependencies(const std::string& name) const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::vector<std::vector<std::string>> lines_;  // a module and what it needs
};

// "kernel/fs/9p/9p.ko.xz" -> "9p"; dashes become underscores.
std::string module_name(const std::string& path);

// The file of a module, uncompressed: itself, or a copy in the cache. Throws Error(io).
std::string plain_module(const Kernel& kernel, const std::string& path);

// What a module file says it depends on ("depends=" in .modinfo).
std::vector<std::string> module_depends(const std::string& file);

}  // namespace kz::lab
