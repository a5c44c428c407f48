// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/host.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"

namespace kz::lab {
namespace fs = std::filesystem;
namespace {

constexpr int cannot = 125, wrong_words = 2;
// A root is 0.5 to 0.8 GB, and as much again for packages while it is being extracted; a debug kernel's is
// that large while it is being built (roots.sh, need_debug_mb).
constexpr uint64_t mib_a_root = 900, mib_of_a_debug_kernel = 6000, mib_of_qemu = 300, mib_of_a_run = 300;
constexpr const char* model_device = "vfio-user-pci";

std::string on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::path p = fs::path(folder) / name; ::access(p.c_str(), X_OK) == 0) return p;
  return {};
}

// "QEMU emulator version 11.1.3 (Debian ...)"
std::string version_of(const std::vector<std::string>& command) {
  auto words = command;
  words.emplace_back("--version");
  std::istringstream said(run_captured(words, {}, 20s).output);
  std::string word;
  while (said >> word)
    if (word == "version" && said >> word) return word;
  return {};
}

bool has_model_device(std::vector<std::string> command) {
  command.insert(command.end(), {"-device", "help"});
  return run_captured(command, {}, 20s).output.find(model_device) != std::string::npos;
}

Qemu checked(const std::vector<std::string>& command, const std::string& name) {
  Qemu q{command, version_of(command)};
  if (q.version.empty())
    throw Error(
        {Errc::unsupported, "use QEMU", name, "it does not tell its version", "name another with --qemu", 0});
  if (!has_model_device(command))
    throw Error({Errc::unsupported, "use QEMU", fmt::format("{} ({})", name, q.version),
                 fmt::format("it is too old: no device {} (from 10.1 on)", model_device),
                 "leave --qemu out, then one is fetched into the cache", 0});
  return q;
}

// The extracted one runs with its own loader and libraries, whatever the host has.
std::vector<std::string> extracted_qemu() {
  std::string root = cache_folder() + "/roots/qemu", lib = root + "/usr/lib/x86_64-linux-gnu";
  return {lib + "/ld-linux-x86-64.so.2",
          "--library-path",
          lib + ":" + lib + "/pulseaudio",
          root + "/usr/bin/qemu-system-x86_64",
          "-L",
          root + "/usr/share/qemu",
          "-L",
          root + "/usr/share/seabios"};
}

}  // namespace

std::string share_folder() {
  std::vector<fs::path> places;
  if (const char* named = std::getenv("KANGZAO_SHARE")) places.emplace_back(named);
  places.push_back(fs::path(program_directory()).parent_path() / "share/kangzao");
  places.emplace_back(KZ_SOURCE_DIR);
  for (auto& place : places)
    if (fs::exists(place / "tools/lab/roots.sh")) return place;
  throw Error({Errc::not_found, "find", "the lab's files",
               "no tools/lab/roots.sh in " + places.back().string(),
               "name the folder that holds tools/lab and shim/kmod in KANGZAO_SHARE", 0});
}

std::string cache_folder() {
  if (const char* named = std::getenv("XDG_CACHE_HOME"); named != nullptr && *named != '\0')
    return std::string(named) + "/kangzao";
  const char* home = std::getenv("HOME");
  if (home == nullptr)
    throw Error({Errc::not_found, "find", "the cache folder", "HOME is not set", "set XDG_CACHE_HOME", 0});
  return std::string(home) + "/.cache/kangzao";
}

std::string run_script(const std::string& name, const std::vector<std::string>& words,
                       std::chrono::seconds limit) {
  std::string script = share_folder() + "/tools/lab/" + name;
  std::vector<std::string> argv{"/bin/sh", script};
  argv.insert(argv.end(), words.begin(), words.end());
  Captured got = run_captured(argv, {}, limit, {.stop = [] { return told_to_stop(); }});
  while (!got.output.empty() && got.output.back() == '\n') got.output.pop_back();
  if (got.status == 0) return got.output;
  std::string said = last_line(got.errors);
  if (auto at = said.find(": "); at != std::string::npos && !said.starts_with("make")) said.erase(0, at + 2);
  if (got.timed_out)
    said = told_to_stop() ? "told to stop" : fmt::format("no end within {}", to_string(limit));
  int code = WIFEXITED(got.status) ? WEXITSTATUS(got.status) : -1;
  throw Error({code == cannot        ? Errc::unsupported
               : code == wrong_words ? Errc::usage
                                     : Errc::not_found,
               "prepare the lab", fmt::format("{} {}", name, words.empty() ? "" : words[0]),
               said.empty() ? describe_status(got.status) : said, "", 0});
}

Qemu find_qemu(const std::string& given) {
  if (!given.empty()) {
    if (::access(given.c_str(), X_OK) != 0)
      throw Error({Errc::not_found, "use QEMU", given, "there is no such program", "", 0});
    return checked({fs::absolute(given)}, given);
  }
  if (std::string host = on_path("qemu-system-x86_64"); !host.empty() && has_model_device({host}))
    return checked({host}, host);
  auto command = extracted_qemu();
  if (!fs::exists(command[0]))
    throw Error({Errc::not_found, "find", "QEMU",
                 fmt::format("none with {} (10.1 or newer) on this host or in the cache", model_device),
                 "kangzao lab fetches one from the archive", 0});
  return checked(command, "the cached QEMU");
}

std::vector<std::string> missing_roots(const std::vector<std::string>& roles, bool qemu) {
  std::vector<std::string> out;
  for (auto& role : roles)
    if (run_script("roots.sh", {"has", role}, 10s) != "yes") out.push_back(role);
  if (!qemu) return out;
  try {
    find_qemu();
  } catch (const Error&) {
    out.emplace_back("qemu");
  }
  return out;
}

void check_room(const std::vector<std::string>& missing) {
  uint64_t need = mib_of_a_run;
  for (auto& role : missing)
    need += role == "qemu" ? mib_of_qemu : role.ends_with("-debug") ? mib_of_a_debug_kernel : mib_a_root;
  fs::path folder = cache_folder();
  std::error_code ec;
  fs::create_directories(folder, ec);
  struct statvfs room {};
  if (ec || ::statvfs(folder.c_str(), &room) != 0)
    throw Error({Errc::permission, "use the cache", folder, ec ? ec.message() : "it cannot be looked at",
                 "name another folder in XDG_CACHE_HOME", 0});
  uint64_t free = room.f_bavail * room.f_frsize >> 20;
  std::string sizes = fmt::format("{:.1f} GB needed, {:.1f} GB free", need / 1024.0, free / 1024.0);
  if (!missing.empty())
    say(fmt::format("lab: to fetch into {}: {} roots, {}\n", folder.string(), missing.size(), sizes));
  if (free < need)
    throw Error({Errc::no_memory, "fetch roots into", folder, sizes,
                 "make room, or name another folder in XDG_CACHE_HOME", 0});
}

void fetch_missing(const std::vector<std::string>& roles, bool qemu) {
  auto missing = missing_roots(roles, qemu);
  check_room(missing);
  for (auto& role : missing) {
    say(fmt::format("lab: fetching {}\n", role));
    run_script("roots.sh", {"get", role}, std::chrono::seconds(3600));
  }
}

void need_root() {
  if (::geteuid() != 0)
    throw Error({Errc::permission, "start", "the lab", "extracting and entering Debian roots needs root",
                 "run it with sudo", 0});
}

}  // namespace kz::lab
