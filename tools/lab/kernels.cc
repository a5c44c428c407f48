// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/kernels.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "shim/base/error.h"
#include "shim/base/hash.h"
#include "shim/base/text.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/host.h"
#include "tools/lab/results.h"

namespace kz::lab {
namespace fs = std::filesystem;
namespace {

std::string first_there(const std::vector<fs::path>& places) {
  for (auto& p : places)
    if (fs::exists(p)) return p;
  return {};
}

std::string modules_folder(const std::string& given, const std::string& release) {
  if (given.empty()) return {};
  std::string found =
      first_there({fs::path(given) / "modules.dep", fs::path(given) / "lib/modules" / release / "modules.dep",
                   fs::path(given) / release / "modules.dep"});
  if (!found.empty()) return fs::absolute(found).parent_path();
  if (first_there({fs::path(given) / "build", fs::path(given) / "Module.symvers"}).empty())
    throw Error({Errc::usage, "read --modules", given, "no modules.dep in it, nor in lib/modules/" + release,
                 "give what 'make modules_install INSTALL_MOD_PATH=DIR' made", 0});
  return fs::absolute(given);
}

// Modules fit the configuration and the exported symbols, not the release: the image changes with each build.
uint64_t hash_of_kernel(const fs::path& image, const fs::path& build) {
  std::error_code ec;
  Hash hash;
  hash.add(fs::canonical(build, ec).string());
  for (auto& file : {image, build / ".config", build / "Module.symvers"}) hash.add(content_of(file));
  return hash.value();
}

}  // namespace

const std::vector<std::string>& kernel_roles() {
  static const std::vector<std::string> roles{"stable-1", "stable",         "backports",
                                              "sid",      "stable-1-debug", "backports-debug"};
  return roles;
}

const std::vector<std::string>& stock_roles() {
  static const std::vector<std::string> roles{"stable-1", "stable", "backports", "sid"};
  return roles;
}

Kernel find_kernel(const std::string& role) {
  if (std::ranges::find(kernel_roles(), role) == kernel_roles().end()) {
    auto near = near_matches(role, kernel_roles());
    throw Error({Errc::usage, "find kernel", fmt::format("'{}'", role), "there is no such role",
                 near.empty() ? "kangzao lab list shows them" : fmt::format("did you mean {}?", near.front()),
                 0});
  }
  fs::path root = run_script("roots.sh", {"path", role}, 10s);
  std::string release = run_script("roots.sh", {"version", role}, 10s);
  fs::path modules = root / "usr/lib/modules" / release;
  if (!fs::exists(modules)) modules = root / "lib/modules" / release;
  std::string image = first_there({root / ("boot/vmlinuz-" + release), modules / "vmlinuz"});
  Kernel k{role,    release, image,
           modules, {},      hash_of_kernel(image, root / ("usr/src/linux-headers-" + release))};
  if (k.image.empty())
    throw Error({Errc::not_found, "find kernel", role, "no image in " + root.string(),
                 "remove that folder, the next run fetches it again", 0});
  return k;
}

Kernel given_kernel(const std::string& image, const std::string& modules) {
  if (!fs::exists(image)) throw Error({Errc::usage, "read --kernel", image, "there is no such file", "", 0});
  std::string release = release_of_image(image);
  if (release.empty())
    throw Error({Errc::usage, "read --kernel", image, "it is no x86 bzImage",
                 "give arch/x86/boot/bzImage or a vmlinuz", 0});
  Kernel k{"given", release, fs::absolute(image), modules_folder(modules, release)};
  if (!k.modules.empty()) k.build = first_there({fs::path(k.modules) / "build", fs::path(k.modules)});
  if (!k.build.empty() && !fs::exists(fs::path(k.build) / "Makefile")) k.build.clear();
  k.hash = hash_of_kernel(image, k.build.empty() ? k.modules : k.build);
  return k;
}

std::string release_of_image(const std::string& image) {
  std::ifstream in(image, std::ios::binary);
  char head[0x210] = {};
  if (!in.read(head, sizeof head) || std::memcmp(head + 0x202, "HdrS", 4) != 0) return {};
  uint16_t at = 0;
  std::memcpy(&at, head + 0x20e, sizeof at);
  char text[128] = {};
  in.seekg(at + 0x200);
  if (at == 0 || !in.read(text, sizeof text - 1)) return {};
  std::string release(text);
  release.erase(std::min(release.find(' '), release.size()));
  return std::ranges::all_of(release, [](unsigned char c) { return std::isgraph(c) != 0 && c != '/'; })
             ? release
             : "";
}

ModuleTree::ModuleTree(std::string folder) : folder_(std::move(folder)) {
  std::ifstream in(folder_ + "/modules.dep");
  for (std::string line; std::getline(in, line);) {
    std::replace(line.begin(), line.end(), ':', ' ');
    std::istringstream words(line);
    lines_.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
}

std::vector<std::string> ModuleTree::with_dependencies(const std::string& name) const {
  for (auto& line : lines_)
    if (!line.empty() && module_name(line[0]) == module_name(name)) return {line.rbegin(), line.rend()};
  return {};
}

std::string module_name(const std::string& path) {
  std::string name = fs::path(path).filename();
  name.erase(std::min(name.find(".ko"), name.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string plain_module(const Kernel& kernel, const std::string& path) {
  fs::path file = fs::path(kernel.modules) / path;
  std::string ending = file.extension();
  if (ending == ".ko") return file;
  fs::path copy = fs::path(cache_folder()) / "lab/modules" /
                  fmt::format("{}-{:016x}", kernel.release, kernel.hash) / (module_name(path) + ".ko");
  if (fs::exists(copy) && fs::last_write_time(copy) >= fs::last_write_time(file)) return copy;
  fs::create_directories(copy.parent_path());
  std::string tool = ending == ".xz"    ? "xz"
                     : ending == ".zst" ? "zstd"
                                        : "gzip",
              fresh = fmt::format("{}.{}", copy.string(), ::getpid());
  Captured got =
      run_captured({"/bin/sh", "-c", "exec \"$0\" -dc \"$1\" >\"$2\"", tool, file, fresh}, {}, 60s);
  if (got.status != 0)
    throw Error({Errc::io, "unpack module", file, last_line(got.errors), "install " + tool, 0});
  fs::rename(fresh, copy);
  return copy;
}

std::vector<std::string> module_depends(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::string data((std::istreambuf_iterator<char>(in)), {});
  std::string key("\0depends=", 9);
  auto at = data.find(key);
  if (at == std::string::npos) return {};
  std::istringstream names(std::string(data.c_str() + at + key.size()));
  std::vector<std::string> out;
  for (std::string name; std::getline(names, name, ',');) out.push_back(name);
  return out;
}

}  // namespace kz::lab
