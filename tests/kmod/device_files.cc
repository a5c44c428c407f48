// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/device_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tests/kmod/text_file.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

constexpr size_t most_files = 4000;

void add_folder(const fs::path& folder, std::set<std::string>& out, int depth) {
  std::error_code ec;
  for (auto& e : fs::directory_iterator(folder, ec)) {
    if (out.size() >= most_files || e.is_symlink(ec)) continue;
    const std::string name = e.path().filename();
    if (e.is_regular_file(ec)) out.insert(e.path());
    // Another function below a bridge, or a device of another bus, is not this device.
    if (e.is_directory(ec) && depth > 0 && !exists(e.path() / "vendor")) add_folder(e.path(), out, depth - 1);
  }
}

}  // namespace

std::vector<std::string> device_files(const Target& t) {
  std::set<std::string> out;
  add_folder(t.sysfs(), out, 4);
  add_folder("/sys/bus/pci/drivers/" + t.driver, out, 0);
  if (!t.module.empty()) add_folder("/sys/module/" + t.module, out, 2);
  for (auto& name : {t.driver, t.module})
    if (!name.empty() && exists("/sys/kernel/debug/" + name)) add_folder("/sys/kernel/debug/" + name, out, 4);
  return {out.begin(), out.end()};
}

std::string hwmon_folder(const Target& t) {
  std::error_code ec;
  for (auto& e : fs::directory_iterator(t.sysfs() + "/hwmon", ec)) return e.path();
  return {};
}

bool is_dangerous_to_write(const std::string& path) {
  // reset_controller, soft_reset, rescan_controller, delete_controller, ...: some act on whatever is written.
  const std::string file = fs::path(path).filename();
  for (auto word : {"reset", "rescan", "delete", "remove", "erase", "format", "flash", "shutdown"})
    if (file.find(word) != std::string::npos) return true;
  static const std::set<std::string> names{"remove",
                                           "rescan",
                                           "dev_rescan",
                                           "reset",
                                           "reset_method",
                                           "reset_subordinate",
                                           "driver_override",
                                           "bind",
                                           "unbind",
                                           "new_id",
                                           "remove_id",
                                           "d3cold_allowed",
                                           "enable",
                                           "config",
                                           "rom",
                                           "sriov_numvfs",
                                           "sriov_drivers_autoprobe",
                                           "msi_bus",
                                           "broken_parity_status",
                                           "numa_node",
                                           "uevent",
                                           "power_cap",
                                           "firmware_load",
                                           "remove_on_reset",
                                           "online",
                                           "loading",
                                           "data",
                                           "devcoredump",
                                           "disabled",
                                           "delete",
                                           "hot_reset",
                                           "link_retrain"};
  const std::string name = fs::path(path).filename();
  if (names.contains(name)) return true;
  for (auto part : {"resource", "/power/", "/link/", "slave_", "aer_"})
    if (path.find(part) != std::string::npos) return true;
  return path.ends_with("/control") || path.ends_with("/wakeup");
}

bool is_dangerous_to_read(const std::string& path) {
  const std::string name = fs::path(path).filename();
  return name == "config" || name == "rom" || (name.starts_with("resource") && name != "resource");
}

}  // namespace kz::test
