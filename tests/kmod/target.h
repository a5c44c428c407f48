// SPDX-License-Identifier: GPL-2.0-or-later
// The driver under test: which function it drives, its module and file; bound, unbound, loaded and unloaded
// through sysfs and system calls, each within a time; and given back as found.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shim/base/units.h"

namespace kz::test {

// What a step that may never return came to. `hang`: where it stands, when it did not end in time.
struct Outcome {
  bool in_time = false;
  int value = 0;
  double seconds = 0;
  std::string hang;  // where it stands, when it did not end in time
  std::string died;  // how it ended, when it ended without a value
};
// Runs `act` in a process of its own, which is left behind where it cannot be ended (uninterruptible sleep).
Outcome bounded(std::chrono::nanoseconds budget, const std::function<int()>& act);
// The same; a step that hangs fails the test and throws Error(timeout).
int in_time(const std::string& what, std::chrono::nanoseconds budget, const std::function<int()>& act);
// Where every thread of a process stands: state, wait channel, kernel stack as far as readable.
std::string where_it_stands(int pid);

// True as soon as `seen` is; false after the budget. Looks every few milliseconds.
bool wait_until(std::chrono::nanoseconds budget, const std::function<bool()>& seen);

struct Target {
  std::string slot;          // "0000:01:00.0"
  std::string node;          // "/dev/kz0" where it is named by its node, else ""
  std::string driver;        // on the PCI bus
  std::string module;        // of the driver; "" where it is built in
  std::string file;          // of the module, "" where nobody knows
  std::string parameters;    // in force when the test began
  std::string load_command;  // --load-command
  std::string override_was;  // driver_override when the test began

  bool ours() const { return !node.empty(); }  // has the reference driver's calls
  std::string sysfs() const { return "/sys/bus/pci/devices/" + slot; }
  // Of the reference driver's class device; "" where the device is another's.
  std::string class_file(const std::string& name) const {
    return ours() ? "/sys/class/kz/" + node.substr(5) + "/" + name : "";
  }
  std::string bound_to() const;      // driver, or ""
  std::string override_now() const;  // "" where none is set
  bool present() const;              // the function is in sysfs
  bool can_reload() const;           // it is a module whose file is known, and drives nothing else
  // Sizes of the BARs that have an address, from sysfs.
  std::vector<uint64_t> bars() const;

  // 0 or -errno; each at most `step_limit`.
  int bind(const std::string& driver_name) const;
  int bind() const { return bind(driver); }
  int unbind() const;
  int load(const std::string& params) const;
  int load() const { return load(parameters); }
  // Throws Error(busy) where the module drives other devices too.
  int unload() const;
  // Unloads as soon as the last user has gone: 0, or what the last try said.
  int unload_when_free(std::chrono::nanoseconds budget) const;
  int remove_function() const;
  int rescan() const;
  // Waits until driver and node are there.
  bool wait_ready(std::chrono::nanoseconds budget) const;
  // Function, module, driver, node: makes what is missing. What could not be made, or "".
  std::string restore() const;
};

inline constexpr auto step_limit = std::chrono::seconds(30);

// Address of the function under test; "" where nobody knows it.
std::string slot_of_run();

// The target of this run, ready to be used. Ends the test: skip where no kernel driver is involved, blocked
// where this user or host cannot (no root, driver not to be had).
Target find_target();
// Skips where the module cannot be unloaded and loaded again.
void need_module(const Target& target);
// After a rescan: a BAR that had an address and has none any more is the platform's doing; warns with a
// remedy.
void check_bars(const Target& target, const std::vector<uint64_t>& before);
// Skips where the reference device's aperture has no address.
void need_aperture(const Target& target);
// Skips where the device has not the reference driver's calls.
void need_our_calls(const Target& target);

// Whatever the test did, the driver is back on its function at the end. A device that cannot be given back
// fails the test.
class GiveBack {
 public:
  explicit GiveBack(const Target& target) : target_(target) {}
  ~GiveBack();
  GiveBack(const GiveBack&) = delete;

 private:
  const Target& target_;
};

}  // namespace kz::test
