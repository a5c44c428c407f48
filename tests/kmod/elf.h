// SPDX-License-Identifier: GPL-2.0-or-later
// A module's file made wrong in one place, so that the loader must refuse it: 64-bit little-endian ELF
// objects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kz::test {

struct ElfSection {
  std::string name;
  uint64_t offset = 0, size = 0;  // in the file
  uint32_t type = 0, link = 0;
};

class ElfImage {
 public:
  // Throws Error(bad_data) for what is no such object.
  explicit ElfImage(std::vector<char> bytes);
  const std::vector<char>& bytes() const { return bytes_; }
  const ElfSection* section(const std::string& name) const;
  // Names of undefined symbols: what the module needs of others.
  std::vector<std::string> needed() const;

  // Each returns whether there was something to change.
  // A value of .modinfo, "vermagic" or "license", replaced by one of the same length: the first `text` bytes.
  bool patch_info(const std::string& key, const std::string& text);
  std::optional<std::string> info(const std::string& key) const;
  // The undefined symbol gets another last letter, in the string table and in __versions.
  bool rename_symbol(const std::string& name);
  // One bit of the checksum that the module has for a symbol (__versions, CONFIG_MODVERSIONS). The name, or
  // "" for any.
  std::string change_version();
  // Without the signature that may be appended to a module. False: it had none.
  bool strip_signature();
  void cut(size_t bytes) { bytes_.resize(bytes); }

 private:
  std::vector<char> bytes_;
  std::vector<ElfSection> sections_;
};

}  // namespace kz::test
