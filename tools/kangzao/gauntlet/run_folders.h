// SPDX-License-Identifier: GPL-2.0-or-later
// The folders of a gauntlet's runs: kept where the user says, else temporary.
#pragma once

#include <string>

namespace kz::gauntlet {

class RunFolders {
 public:
  // Throws where it cannot be made.
  explicit RunFolders(const std::string& keep);
  ~RunFolders();
  RunFolders(const RunFolders&) = delete;
  RunFolders& operator=(const RunFolders&) = delete;
  // Of the next run; not there yet. Tests are told their run's folder, so its name does not say what is
  // planted.
  std::string fresh();
  // The run in it is over: the folder gets a name that says what was planted, where it is kept, and goes
  // else.
  void done(const std::string& folder, const std::string& what) const;

 private:
  std::string base_;
  bool keep_;
  unsigned runs_ = 0;
};

}  // namespace kz::gauntlet
