// SPDX-License-Identifier: GPL-2.0-or-later
// Runs one process's part of a plan: opens its devices, starts its threads, keeps the books.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "shim/device.h"
#include "shim/load/hooks.h"
#include "shim/load/job.h"
#include "shim/load/ledger.h"

namespace kz::load {

// Gives the device of a URI; asked once for each. Throws Error.
using DeviceSource = std::function<Device&(const std::string& uri)>;

// Opens devices when they are asked for and keeps them.
class OpenDevices {
 public:
  Device& operator()(const std::string& uri);

 private:
  std::map<std::string, std::unique_ptr<Device>> devices_;
};

enum class Start { now, when_told };  // when_told: when the ledger names the time

// Returns when every thread has ended. Throws nothing for what a device does: that is in the ledger. When a
// worker cannot be prepared, none of this process begins, and the ledger says why.
void run_process(const Plan& plan, unsigned process, Ledger& ledger, const DeviceSource& devices, Start start,
                 const Hooks& hooks = {});

}  // namespace kz::load
