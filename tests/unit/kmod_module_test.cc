// SPDX-License-Identifier: GPL-2.0-or-later
#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "shim/base/error.h"
#include "tests/kmod/elf.h"
#include "tests/kmod/module.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The smallest object that has what a module has: .modinfo, __versions, a symbol that is not defined.
std::vector<char> small_module() {
  const std::string modinfo("license=GPL\0vermagic=6.1.0 SMP mod_unload \0name=toy\0", 52);
  const std::string strings("\0pci_enable_device\0", 19);
  std::string versions(128, '\0');
  std::strcpy(versions.data() + 8, "module_layout");
  std::strcpy(versions.data() + 72, "pci_enable_device");
  const std::string names("\0.modinfo\0__versions\0.symtab\0.strtab\0.shstrtab\0", 47);
  Elf64_Sym symbols[2] = {};
  symbols[1].st_name = 1;
  const std::string table(reinterpret_cast<char*>(symbols), sizeof symbols);
  Elf64_Ehdr head{};
  std::memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS64;
  head.e_ident[EI_DATA] = ELFDATA2LSB;
  head.e_type = ET_REL;
  head.e_shnum = 6;
  head.e_shstrndx = 5;
  std::string body;
  Elf64_Shdr sections[6] = {};
  const std::pair<const std::string*, std::pair<unsigned, unsigned>> all[] = {{&modinfo, {1, SHT_PROGBITS}},
                                                                              {&versions, {10, SHT_PROGBITS}},
                                                                              {&table, {21, SHT_SYMTAB}},
                                                                              {&strings, {29, SHT_STRTAB}},
                                                                              {&names, {37, SHT_STRTAB}}};
  for (unsigned i = 0; i < 5; ++i) {
    sections[i + 1].sh_name = all[i].second.first;
    sections[i + 1].sh_type = all[i].second.second;
    sections[i + 1].sh_offset = sizeof head + body.size();
    sections[i + 1].sh_size = all[i].first->size();
    body += *all[i].first;
  }
  sections[3].sh_link = 4;
  head.e_shoff = sizeof head + body.size();
  std::string out(reinterpret_cast<char*>(&head), sizeof head);
  out += body;
  out.append(reinterpret_cast<char*>(sections), sizeof sections);
  return {out.begin(), out.end()};
}

TEST(KmodElf, SpoilsOneThing) {
  ElfImage image(small_module());
  EXPECT_THAT(image.needed(), ElementsAre("pci_enable_device"));
  EXPECT_EQ(image.info("license"), "GPL");
  EXPECT_EQ(image.info("nothing"), std::nullopt);
  EXPECT_TRUE(image.patch_info("vermagic", "9"));
  EXPECT_EQ(image.info("vermagic"), "9.1.0 SMP mod_unload ");
  EXPECT_EQ(image.info("name"), "toy");
  EXPECT_TRUE(image.rename_symbol("pci_enable_device"));
  EXPECT_THAT(image.needed(), ElementsAre("pci_enable_devicX"));
  EXPECT_FALSE(image.rename_symbol("pci_enable_device"));
  EXPECT_FALSE(image.strip_signature());
}

TEST(KmodElf, ChangesTheVersionOfARealSymbol) {
  ElfImage image(small_module());
  EXPECT_EQ(image.change_version(), "pci_enable_device");
  EXPECT_NE(image.bytes(), small_module());
}

TEST(KmodElf, StripsASignature) {
  auto bytes = small_module();
  const size_t before = bytes.size();
  const std::string tail = std::string(50, 's') + std::string(8, '\0') + std::string("\0\0\0\x32", 4) +
                           "~Module signature appended~\n";
  bytes.insert(bytes.end(), tail.begin(), tail.end());
  ElfImage image(bytes);
  EXPECT_TRUE(image.strip_signature());
  EXPECT_EQ(image.bytes().size(), before);
}

TEST(KmodElf, BrokenFilesAreSaidToBe) {
  EXPECT_THROW(ElfImage(std::vector<char>{}), Error);
  EXPECT_THROW(ElfImage(std::vector<char>(200, 'x')), Error);
  auto cut = small_module();
  for (size_t n = 0; n < cut.size(); n += 7)
    EXPECT_THROW(ElfImage(std::vector<char>(cut.begin(), cut.begin() + static_cast<std::ptrdiff_t>(n))),
                 Error);
  for (size_t at = 0; at < cut.size(); ++at) {
    auto bent = cut;
    bent[at] = static_cast<char>(bent[at] ^ 0xff);
    try {
      ElfImage image(bent);
      image.needed();
      image.change_version();
      image.rename_symbol("pci_enable_device");
      image.patch_info("vermagic", "x");
    } catch (const Error&) {
    }
  }
}

TEST(KmodModule, TriesForEveryType) {
  for (auto type : {"byte", "int", "uint", "long", "ulong", "short", "ushort", "hexint", "ullong", "bool",
                    "charp", "array of int"}) {
    auto tries = tries_for(type);
    EXPECT_GE(tries.size(), 2u) << type;
    EXPECT_TRUE(std::ranges::any_of(tries, [](auto& t) { return !t.must_fail; })) << type;
  }
  EXPECT_EQ(tries_for("uint")[1].value, "4294967295");
}

TEST(KmodModule, LoadRefusalsAreToldApart) {
  auto name = [](int error, const std::string& log) {
    return explain_load_refusal(error, log, "6.1.0-50-amd64", "").name;
  };
  EXPECT_EQ(name(-ENOEXEC, "toy: version magic '9.1.0 SMP' should be '6.1.0 SMP'\n"), "version_magic");
  EXPECT_EQ(name(-ENOENT, "toy: Unknown symbol pci_enable_devicX (err -2)\n"), "unknown_symbol");
  EXPECT_EQ(name(-EINVAL,
                 "toy: disagrees about version of symbol pci_enable_device\ntoy: Unknown symbol "
                 "pci_enable_device (err -22)\n"),
            "symbol_version");
  EXPECT_EQ(name(-EKEYREJECTED, "Loading of unsigned module is rejected\n"), "unsigned");
  EXPECT_EQ(
      name(-EPERM, "Lockdown: insmod: unsigned module loading is restricted; see man kernel_lockdown.7\n"),
      "unsigned");
  EXPECT_EQ(name(-EEXIST, ""), "already_loaded");
  EXPECT_EQ(name(-EBUSY, ""), "busy");
  EXPECT_EQ(name(-ENOEXEC, ""), "module_format");
  EXPECT_EQ(name(-ELIBBAD, ""), "not_known");
  EXPECT_THAT(
      explain_load_refusal(-ENOEXEC, "toy: version magic '9.1.0 SMP' should be '6.1.0 SMP'\n", "6.1.0", "")
          .cure,
      HasSubstr("headers"));
}

TEST(KmodModule, BindRefusalsAreToldApart) {
  const std::string modalias = "pci:v00001234d00004B5Asv00001234sd00004B5Abc12sc00i00";
  BindFacts good{.driver = "toy",
                 .bound = "",
                 .override = "(null)",
                 .modalias = modalias,
                 .aliases = {"pci:v00001234d00004B5Asv*sd*bc*sc*i*"},
                 .error = -EIO};
  auto name = [](BindFacts f) { return explain_bind_refusal(f).name; };
  EXPECT_EQ(name(good), "probe_failed");
  auto f = good;
  f.bound = "other";
  EXPECT_EQ(name(f), "already_bound");
  EXPECT_THAT(explain_bind_refusal(f).cure, HasSubstr("other/unbind"));
  f = good;
  f.override = "nobody";
  EXPECT_EQ(name(f), "overridden");
  f = good;
  f.aliases = {"pci:v00008086d*sv*sd*bc*sc*i*"};
  EXPECT_EQ(name(f), "not_in_id_table");
  f.override = "toy";
  EXPECT_EQ(name(f), "probe_failed");
  f = good;
  f.driver_there = false;
  EXPECT_EQ(name(f), "no_such_driver");
}

// A sysfs of our own: links as the kernel makes them.
class ModuleDrives : public ::testing::Test {
 protected:
  ModuleDrives() {
    root_ = fs::path(::testing::TempDir()) / ("kz-sysfs-" + std::to_string(::getpid()));
    fs::create_directories(root_ / "bus/pci/devices");
    fs::create_directories(root_ / "module/toy/drivers");
  }
  ~ModuleDrives() override { fs::remove_all(root_); }
  void device(const std::string& path, const std::string& bus) {
    const fs::path real = root_ / "devices" / path;
    fs::create_directories(real);
    fs::create_directories(root_ / "bus" / bus / "devices");
    fs::create_directory_symlink(real, root_ / "bus" / bus / "devices" / real.filename());
  }
  void bound(const std::string& path, const std::string& bus) {
    const fs::path driver = root_ / "bus" / bus / "drivers/toy";
    fs::create_directories(driver);
    if (!fs::exists(driver / "module")) fs::create_directory_symlink(root_ / "module/toy", driver / "module");
    const fs::path link = root_ / "module/toy/drivers" / (bus + ":toy");
    if (!fs::exists(link)) fs::create_directory_symlink(driver, link);
    fs::create_directory_symlink(root_ / "devices" / path, driver / fs::path(path).filename());
  }
  std::vector<std::string> others(const std::string& slot) {
    return others_of_module("toy", slot, root_.string());
  }

  fs::path root_;
};

TEST_F(ModuleDrives, OnlyTheFunction) {
  EXPECT_THAT(others("0000:01:00.0"), IsEmpty());  // the module is not even loaded
  device("pci0000:00/0000:01:00.0", "pci");
  bound("pci0000:00/0000:01:00.0", "pci");
  EXPECT_THAT(others("0000:01:00.0"), IsEmpty());
}

// A device on a bus that the function carries comes and goes with it.
TEST_F(ModuleDrives, WhatHangsBelowIsItsOwn) {
  device("pci0000:00/0000:01:00.0", "pci");
  device("pci0000:00/0000:01:00.0/virtio0", "virtio");
  bound("pci0000:00/0000:01:00.0", "pci");
  bound("pci0000:00/0000:01:00.0/virtio0", "virtio");
  EXPECT_THAT(others("0000:01:00.0"), IsEmpty());
}

TEST_F(ModuleDrives, AnothersDisk) {
  device("pci0000:00/0000:01:00.0", "pci");
  device("pci0000:00/0000:01:00.01", "pci");  // begins with the same letters
  device("pci0000:00/0000:02:00.0", "pci");
  bound("pci0000:00/0000:01:00.0", "pci");
  bound("pci0000:00/0000:01:00.01", "pci");
  bound("pci0000:00/0000:02:00.0", "pci");
  EXPECT_THAT(others("0000:01:00.0"), ElementsAre("0000:01:00.01", "0000:02:00.0"));
  EXPECT_THAT(others(""), ElementsAre("0000:01:00.0", "0000:01:00.01", "0000:02:00.0"));
}

}  // namespace
}  // namespace kz::test
