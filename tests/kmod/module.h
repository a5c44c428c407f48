// SPDX-License-Identifier: GPL-2.0-or-later
// A kernel module: what its file says, loading and unloading it by the system calls themselves so that errno
// is the kernel's, and why a load or a binding was refused.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kz::test {

struct ModuleParameter {
  std::string name, type;  // "uint", "bool", "charp", "array of int"; "" where the module does not say
};

struct ModuleInfo {
  std::string name, vermagic, license;
  std::vector<std::string> aliases, depends, firmware;
  std::vector<ModuleParameter> parameters;
};

// By libkmod. Throws Error(not_found, bad_data).
ModuleInfo module_info(const std::string& file);
// Where the module of that name lies: libkmod's index of the running kernel; else in a lab guest the lab's
// file. "" where neither has it.
std::string find_module_file(const std::string& name);

// The file's bytes; .xz, .zst and .gz are unpacked by their programs. Throws Error(not_found, unsupported).
std::vector<char> read_module(const std::string& file);

// 0 or -errno, as the kernel says.
int load_module(const std::vector<char>& image, const std::string& parameters);
// Never waits for users to go: -EAGAIN (EWOULDBLOCK) where there are some.
int unload_module(const std::string& name);
bool is_loaded(const std::string& name);
// Of /sys/module/NAME/refcnt; -1 where it is not there.
int module_users(const std::string& name);
// "timeout_ms=10000 vectors=128": parameters as they are in force, those that can be read.
std::string parameters_in_force(const std::string& name);

// Values to try on a parameter of this type: its bounds, and what is none of its values.
struct ParameterTry {
  std::string value;
  bool must_fail;  // the kernel's own parser refuses it
};
std::vector<ParameterTry> tries_for(const std::string& type);

// Everything that the kernel logged since construction.
class KernelTail {
 public:
  KernelTail();
  ~KernelTail();
  KernelTail(const KernelTail&) = delete;
  std::string take();

 private:
  int fd_;
};

struct Explanation {
  std::string name;  // of tools/changes: "version_magic", "unknown_symbol", "symbol_version", ...; or one of
                     // bind_refusal()'s
  std::string text;  // what failed and why
  std::string cure;
};
// Of a load that the kernel refused with `error` and these lines. Name "not_known" where nothing explains it.
Explanation explain_load_refusal(int error, const std::string& log, const std::string& release,
                                 const std::string& vermagic);

// Why a driver does not bind to a function: from what sysfs says of both and the module's id table.
struct BindFacts {
  std::string driver;                // the one that is to take it
  std::string bound;                 // that has it now, "" none
  std::string override;              // driver_override, "" or "(null)" none
  std::string modalias;              // "pci:v00001234d00004B5Asv..."
  std::vector<std::string> aliases;  // of the module
  bool driver_there = true;          // registered
  int error = 0;                     // -errno of the write to bind
};
// Names: "already_bound", "no_such_driver", "overridden", "not_in_id_table", "probe_failed".
Explanation explain_bind_refusal(const BindFacts& facts);

// Devices that the module's drivers are bound to, on any bus, other than the function at `slot` and what
// hangs below it: unloading the module takes them from whoever uses them. `sys`: where sysfs is.
std::vector<std::string> others_of_module(const std::string& module, const std::string& slot,
                                          const std::string& sys = "/sys");

}  // namespace kz::test
