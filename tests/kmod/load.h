// SPDX-License-Identifier: GPL-2.0-or-later
// Load on the device while it is taken away: the reference driver's users, or the command that the run was
// given.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/kmod/target.h"
#include "tests/kmod/user.h"

namespace kz::test {

class Load {
 public:
  // Begins, and returns when every part of it works. Throws Error where it does not.
  explicit Load(const Target& target);
  ~Load();
  Load(const Load&) = delete;

  // After the device was taken away: everybody ends by himself, each command having ended once, with an errno
  // that says so. Fails the test otherwise.
  void expect_cut_off();
  // Told to end, with the device there all the time: everything ended well.
  void expect_clean_end();
  // Commands that ended well so far.
  uint64_t commands() const;
  std::string what() const;

 private:
  void start_command();
  const Target& target_;
  std::vector<std::unique_ptr<OtherUser>> users_;
};

// Skips where there is nothing to load the device with.
void need_load(const Target& target);

// Nodes of the function that a user can open: the given one, else those that the kernel knows.
std::vector<std::string> nodes_of(const Target& target);

}  // namespace kz::test
