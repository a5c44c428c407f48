// SPDX-License-Identifier: GPL-2.0-or-later
// Users who hold the device in every way that there is, and what a device's users hold in all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/kmod/target.h"
#include "tests/kmod/user.h"

namespace kz::test {

// A way to hold the device. Each calls ready() when it does, and returns when it is told to, or when the
// device is gone and it has noticed.
struct Way {
  const char* name;
  std::function<void(const std::string& node, const OtherUser::Link& link)> hold;
  bool notices = false;  // ends by itself when the reference device goes
};

// Those that this device, its driver and this kernel allow.
std::vector<Way> ways(const Target& target);
// Commands are taken and nobody picks up their completions.
void hold_commands(const std::string& node, const OtherUser::Link& link);

// A node to hold open; skips where the driver offers none.
std::string some_node(const Target& target);

// Ends a holder; what it has to say against the driver fails the test.
void end_holder(OtherUser& other, const char* name, bool device_stayed);

// What the device and the kernel count as in use.
struct Holdings {
  uint64_t hbm_free = 0;
  uint32_t contexts = 0, queues_free = 0;
  long long pins = 0;
  bool operator==(const Holdings&) const = default;
};

// Pages of this machine that are pinned now.
long long pins_out();
Holdings holdings(int fd);

}  // namespace kz::test
