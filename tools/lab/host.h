// SPDX-License-Identifier: GPL-2.0-or-later
// What the lab needs of this machine: its own files, a cache, root, room, a QEMU that speaks vfio-user.
// Everything that is missing is an Error that names it and the remedy; nothing is installed.
#pragma once

#include <string>
#include <vector>

#include "shim/base/units.h"

namespace kz::lab {

// The folder that holds tools/lab, shim/kmod and shim/uapi: $KANGZAO_SHARE, ../share/kangzao beside this
// program, or the source tree it was built from. Throws Error(not_found).
std::string share_folder();

// ${XDG_CACHE_HOME:-$HOME/.cache}/kangzao
std::string cache_folder();

// Runs tools/lab/NAME and returns its standard output without the last newline. Throws Error with the
// script's last line: unsupported for its exit 125 (this host cannot), usage for 2, else not_found.
std::string run_script(const std::string& name, const std::vector<std::string>& words,
                       std::chrono::seconds limit);

struct Qemu {
  std::vector<std::string> command;  // the program, its own loader and data folders before it
  std::string version;               // "11.1.3"
};
// `given`, else the host's, else the extracted one. Throws Error(unsupported) for one without the device
// vfio-user-pci (from 10.1 on), Error(not_found) where there is none.
Qemu find_qemu(const std::string& given = {});

// Which roots of `roles` (and "qemu", where the host's own does not do) the cache lacks.
std::vector<std::string> missing_roots(const std::vector<std::string>& roles, bool qemu);

// Room for those roots, and for what a run leaves. Says the need on standard error where there is one. Throws
// Error(no_memory) when the file system of the cache has less.
void check_room(const std::vector<std::string>& missing);

// Fetches what is missing of them, after a look at the room. Says what it fetches. Throws as check_room() and
// run_script().
void fetch_missing(const std::vector<std::string>& roles, bool qemu);

// Throws Error(permission): extracting and entering roots, and vhost-less 9p shares, need root.
void need_root();

}  // namespace kz::lab
