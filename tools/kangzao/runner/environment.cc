// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/environment.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "tools/kangzao/version.h"

namespace kz {
namespace {

// The value of the first line that starts with `key` in a "key<separator>value" file.
std::string value_of(const char* path, const std::string& key, char separator) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    auto at = line.find(separator);
    if (at == std::string::npos) continue;
    std::string value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    value.erase(value.find_last_not_of(" \t\"") + 1);
    return value;
  }
  return "unknown";
}

}  // namespace

nlohmann::json host_environment() {
  utsname u{};
  ::uname(&u);
  struct sysinfo memory {};
  ::sysinfo(&memory);
  rlimit memlock{};
  ::getrlimit(RLIMIT_MEMLOCK, &memlock);
  std::string flags = value_of("/proc/cpuinfo", "flags", ':');
  nlohmann::json limit = memlock.rlim_cur == RLIM_INFINITY ? nlohmann::json("unlimited")
                                                           : nlohmann::json(memlock.rlim_cur / 1024);
  return {{"kernel", u.release},
          {"machine", u.machine},
          {"distribution", value_of("/etc/os-release", "PRETTY_NAME", '=')},
          {"cpu", value_of("/proc/cpuinfo", "model name", ':')},
          {"cpus", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_mib", memory.totalram * memory.mem_unit >> 20},
          {"memlock_kib", limit},
          {"hypervisor", flags.find("hypervisor") != std::string::npos},
          {"root", ::geteuid() == 0},
          {"kangzao", version}};
}

}  // namespace kz
