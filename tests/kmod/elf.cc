// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/elf.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "shim/base/error.h"

namespace kz::test {
namespace {

// include/linux/module_signature.h: the last bytes of a signed module.
constexpr std::string_view signed_mark = "~Module signature appended~\n";
constexpr size_t signature_info =
    12;  // struct module_signature, its length in the last four bytes, big-endian
// struct modversion_info: a 64-bit checksum and a name, 64 bytes in all.
constexpr size_t version_entry = 64;

[[noreturn]] void bad(const char* what) {
  throw Error({Errc::bad_data, "read", "the module's file", what, "give the .ko itself with --module", 0});
}

template <class T>
T read_at(const std::vector<char>& bytes, uint64_t offset) {
  T out;
  if (offset > bytes.size() || bytes.size() - offset < sizeof out) bad("it ends too early");
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return out;
}

std::string string_at(const std::vector<char>& bytes, uint64_t offset) {
  if (offset >= bytes.size()) bad("a name lies outside it");
  return {bytes.data() + offset, strnlen(bytes.data() + offset, bytes.size() - offset)};
}

}  // namespace

ElfImage::ElfImage(std::vector<char> bytes) : bytes_(std::move(bytes)) {
  auto head = read_at<Elf64_Ehdr>(bytes_, 0);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) bad("it is no ELF object");
  if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_ident[EI_DATA] != ELFDATA2LSB || head.e_type != ET_REL)
    bad("it is no 64-bit little-endian relocatable object");
  auto header = [&](unsigned n) {
    return read_at<Elf64_Shdr>(bytes_, head.e_shoff + uint64_t{n} * sizeof(Elf64_Shdr));
  };
  const uint64_t names = header(head.e_shstrndx).sh_offset;
  for (unsigned n = 0; n < head.e_shnum; ++n) {
    auto h = header(n);
    bool in_file = h.sh_type != SHT_NOBITS && h.sh_type != SHT_NULL;
    if (in_file && (h.sh_offset > bytes_.size() || h.sh_size > bytes_.size() - h.sh_offset))
      bad("a section lies outside it");
    sections_.push_back(
        {string_at(bytes_, names + h.sh_name), h.sh_offset, in_file ? h.sh_size : 0, h.sh_type, h.sh_link});
  }
}

const ElfSection* ElfImage::section(const std::string& name) const {
  auto it = std::ranges::find(sections_, name, &ElfSection::name);
  return it == sections_.end() ? nullptr : &*it;
}

std::vector<std::string> ElfImage::needed() const {
  std::vector<std::string> out;
  for (auto& s : sections_) {
    if (s.type != SHT_SYMTAB || s.link >= sections_.size()) continue;
    for (uint64_t at = s.offset + sizeof(Elf64_Sym); at + sizeof(Elf64_Sym) <= s.offset + s.size;
         at += sizeof(Elf64_Sym)) {
      auto symbol = read_at<Elf64_Sym>(bytes_, at);
      if (symbol.st_shndx == SHN_UNDEF && symbol.st_name != 0)
        out.push_back(string_at(bytes_, sections_[s.link].offset + symbol.st_name));
    }
  }
  return out;
}

std::optional<std::string> ElfImage::info(const std::string& key) const {
  const ElfSection* s = section(".modinfo");
  if (s == nullptr) return std::nullopt;
  for (uint64_t at = s->offset; at < s->offset + s->size;) {
    std::string entry = string_at(bytes_, at);
    if (entry.starts_with(key + "=")) return entry.substr(key.size() + 1);
    at += entry.size() + 1;
  }
  return std::nullopt;
}

bool ElfImage::patch_info(const std::string& key, const std::string& text) {
  const ElfSection* s = section(".modinfo");
  if (s == nullptr) return false;
  for (uint64_t at = s->offset; at < s->offset + s->size;) {
    std::string entry = string_at(bytes_, at);
    if (entry.starts_with(key + "=")) {
      size_t length = std::min(text.size(), entry.size() - key.size() - 1);
      std::memcpy(bytes_.data() + at + key.size() + 1, text.data(), length);
      return length != 0;
    }
    at += entry.size() + 1;
  }
  return false;
}

bool ElfImage::rename_symbol(const std::string& name) {
  const std::string whole = '\0' + name + '\0';
  bool any = false;
  auto rename_in = [&](const ElfSection& s, const std::string& what) {
    auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(s.offset);
    auto end = begin + static_cast<std::ptrdiff_t>(s.size);
    for (auto at = begin; (at = std::search(at, end, what.begin(), what.end())) != end; ++at) {
      auto last = at + static_cast<std::ptrdiff_t>(what.size()) - 2;
      *last = *last == 'X' ? 'Y' : 'X';
      any = true;
    }
  };
  for (auto& s : sections_) {
    if (s.type == SHT_STRTAB && s.name == ".strtab") rename_in(s, whole);
    if (s.name == "__versions") rename_in(s, name + '\0');
    if (s.name == "__version_ext_names") rename_in(s, name + '\0');
  }
  return any;
}

std::string ElfImage::change_version() {
  const ElfSection* s = section("__versions");
  // One that only this module's code needs, not module_layout, which stands for the whole configuration.
  for (uint64_t at = s == nullptr ? 0 : s->offset; s != nullptr && at + version_entry <= s->offset + s->size;
       at += version_entry) {
    std::string name = string_at(bytes_, at + sizeof(uint64_t));
    if (name.empty() || name == "module_layout") continue;
    bytes_[at] = static_cast<char>(bytes_[at] ^ 1);
    return name;
  }
  return {};
}

bool ElfImage::strip_signature() {
  if (bytes_.size() < signed_mark.size() + signature_info ||
      std::string_view(bytes_.data() + bytes_.size() - signed_mark.size(), signed_mark.size()) != signed_mark)
    return false;
  size_t end = bytes_.size() - signed_mark.size();
  uint32_t length = 0;
  for (size_t i = end - 4; i < end; ++i) length = length << 8 | static_cast<unsigned char>(bytes_[i]);
  end -= signature_info;
  if (length > end) bad("its signature is longer than it");
  bytes_.resize(end - length);
  return true;
}

}  // namespace kz::test
