// SPDX-License-Identifier: GPL-2.0-or-later
// Kernel modules and the driver's self test, built once for each content of their sources.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/kernels.h"

namespace kz::lab {

struct BuiltDriver {
  std::string module;  // the .ko; empty: it did not compile
  std::string log;     // what make said
  bool cached = false;
  double seconds = 0;
};

// Builds the module whose sources are in `sources` for a kernel: in the role's root, or with the host's
// compiler in the build tree of a given kernel. A .ko file is taken as it is. Throws Error(usage) for what
// holds no Makefile or Kbuild, Error(unsupported) where there is nothing to build with. `words`: more for
// make's command line, such as DEBUG=1.
BuiltDriver build_driver(const Kernel& kernel, const std::string& sources,
                         const std::vector<std::string>& words = {});

// A number for the names and contents of all files below the folders that are given.
uint64_t content_hash(std::initializer_list<std::string> folders);

// The same for what build_driver() takes: a folder of sources, with uapi beside it, or a .ko file.
uint64_t driver_hash(const std::string& sources);

// Lines of the Makefile or Kbuild of `sources` with flags that newer kernels ignore (EXTRA_CFLAGS ...).
std::string extra_flags(const std::string& sources);

// The folder of the cache for what build_driver() makes: by the content of the sources and by the kernel.
std::string place_of_build(const Kernel& kernel, const std::string& sources,
                           const std::vector<std::string>& words = {});

// shim/kmod/selftest as a static program. Throws Error(unsupported) when it does not build.
std::string build_selftest();

}  // namespace kz::lab
