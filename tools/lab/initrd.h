// SPDX-License-Identifier: GPL-2.0-or-later
// Writes an initramfs: cpio "newc", not compressed (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
#pragma once

#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kz::lab {

class Initrd {
 public:
  // Throws Error(io), here and below, when `path` cannot be written or a source cannot be read.
  explicit Initrd(const std::string& path);
  void folder(const std::string& name);
  void text(const std::string& name, std::string_view content, unsigned mode = 0644);
  // `mode` 0: as the source has it.
  void file(const std::string& name, const std::string& source, unsigned mode = 0);
  void link(const std::string& name, const std::string& target);
  // A program and the shared libraries that ldd finds for it, at the places where it looks for them.
  void program(const std::string& name, const std::string& source);
  void finish();

 private:
  void entry(const std::string& name, unsigned mode, std::string_view data, unsigned major = 0, unsigned minor = 0);
  void put(std::string_view data);

  std::string path_;
  std::ofstream out_;
  std::set<std::string> made_;
  unsigned inode_ = 0;
  size_t at_ = 0;
};

// What a dynamically linked program loads: path in the guest and file here. A static one: nothing.
std::vector<std::pair<std::string, std::string>> libraries_of(const std::string& program);

}  // namespace kz::lab
