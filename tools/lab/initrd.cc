// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/initrd.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "shim/base/error.h"
#include "shim/base/units.h"
#include "tools/kangzao/runner/process.h"

namespace kz::lab {
namespace fs = std::filesystem;

std::vector<std::pair<std::string, std::string>> libraries_of(const std::string& program) {
  std::vector<std::pair<std::string, std::string>> out;
  std::istringstream said(run_captured({"/usr/bin/ldd", program}, {}, 20s).output);
  for (std::string line; std::getline(said, line);) {
    // "libfmt.so.9 => /lib/x86_64-linux-gnu/libfmt.so.9 (0x...)", "/lib64/ld-linux-x86-64.so.2 (0x...)"
    auto slash = line.find('/');
    if (line.find("not found") != std::string::npos)
      throw Error({Errc::not_found, "pack", program, "a library is missing:" + line, "install it", 0});
    if (slash == std::string::npos) continue;
    std::string path = line.substr(slash, line.find(' ', slash) - slash);
    out.emplace_back(path, path);
  }
  return out;
}

Initrd::Initrd(const std::string& path) : path_(path), out_(path, std::ios::binary | std::ios::trunc) {
  if (!out_) throw_errno("create", path);
  for (auto name : {"dev", "proc", "sys", "tmp", "bin", "lab", "host", "root"}) folder(name);
  entry("dev/console", S_IFCHR | 0600, {}, 5, 1);
}

void Initrd::put(std::string_view data) {
  static constexpr char zeros[4] = {};
  out_.write(data.data(), static_cast<std::streamsize>(data.size()));
  at_ += data.size();
  size_t pad = align_up(at_, 4) - at_;
  out_.write(zeros, static_cast<std::streamsize>(pad));
  at_ += pad;
}

void Initrd::entry(const std::string& name, unsigned mode, std::string_view data, unsigned major, unsigned minor) {
  std::string head = fmt::format("070701{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}", ++inode_,
                                 mode, 0, 0, 1, 0, data.size(), 0, 0, major, minor, name.size() + 1, 0);
  put(head + name + '\0');
  put(data);
}

void Initrd::folder(const std::string& name) {
  if (name.empty() || !made_.insert(name).second) return;
  folder(fs::path(name).parent_path());
  entry(name, S_IFDIR | 0755, {});
}

void Initrd::text(const std::string& name, std::string_view content, unsigned mode) {
  folder(fs::path(name).parent_path());
  if (made_.insert(name).second) entry(name, S_IFREG | mode, content);
}

void Initrd::file(const std::string& name, const std::string& source, unsigned mode) {
  std::ifstream in(source, std::ios::binary);
  std::error_code ec;
  if (!in || fs::is_directory(source, ec)) throw Error({Errc::io, "pack", source, "it cannot be read", "", 0});
  std::string data((std::istreambuf_iterator<char>(in)), {});
  struct stat s {};
  ::stat(source.c_str(), &s);
  text(name, data, mode != 0 ? mode : s.st_mode & 0777);
}

void Initrd::link(const std::string& name, const std::string& target) {
  folder(fs::path(name).parent_path());
  if (made_.insert(name).second) entry(name, S_IFLNK | 0777, target);
}

void Initrd::program(const std::string& name, const std::string& source) {
  file(name, source, 0755);
  for (auto& [path, from] : libraries_of(source)) file(path.substr(1), from, 0755);
}

void Initrd::finish() {
  entry("TRAILER!!!", 0, {});
  out_.flush();
  if (!out_) throw Error({Errc::io, "write", path_, "no room or no permission", "", 0});
}

}  // namespace kz::lab
