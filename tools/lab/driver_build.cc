// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/driver_build.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/hash.h"
#include "shim/base/units.h"
#include "tools/kangzao/runner/process.h"
#include "tools/kangzao/runner/run.h"
#include "tools/lab/host.h"
#include "tools/lab/results.h"

namespace kz::lab {
namespace fs = std::filesystem;
namespace {

constexpr auto build_limit = 600s;

// What builds leave behind is no source.
bool is_source(const fs::path& file) {
  static const std::vector<std::string> endings{".o", ".ko", ".mod", ".cmd", ".order", ".symvers"};
  std::string name = file.filename();
  return !name.starts_with(".") && !name.ends_with(".mod.c") &&
         std::ranges::count(endings, file.extension().string()) == 0;
}

std::string module_in(const fs::path& folder) {
  std::vector<std::string> found;
  std::error_code ec;
  for (auto& f : fs::recursive_directory_iterator(folder, ec))
    if (f.path().extension() == ".ko") found.push_back(f.path());
  std::ranges::sort(found);
  return found.empty() ? "" : found.front();
}

std::vector<std::string> build_command(const Kernel& kernel, const std::string& sources,
                                       const std::string& to) {
  if (kernel.from_root())
    return {"/bin/sh", share_folder() + "/tools/lab/roots.sh", "build", kernel.name, sources, to};
  if (kernel.build.empty())
    throw Error({Errc::unsupported, "build a module for", kernel.image, "no build tree of this kernel",
                 "give --modules a folder with 'build' in it, or --driver a finished .ko", 0});
  // A copy, so that the sources stay clean; the sibling uapi comes along, as roots.sh does it.
  return {"/bin/sh",
          "-ec",
          "n=$(basename \"$1\"); cp -a \"$1/.\" \"$2/$n\"; [ ! -d \"$1/../uapi\" ] || cp -a \"$1/../uapi\" "
          "\"$2/\"; "
          "b=$0 to=$2; shift 2; exec make -C \"$b\" M=\"$to/$n\" modules \"$@\"",
          kernel.build,
          sources,
          to};
}

}  // namespace

uint64_t content_hash(std::initializer_list<std::string> folders) {
  Hash hash;
  for (auto& folder : folders) {
    std::vector<fs::path> files;
    std::error_code ec;
    for (auto& f : fs::recursive_directory_iterator(folder, ec))
      if (f.is_regular_file(ec) && is_source(f.path())) files.push_back(f.path());
    std::ranges::sort(files);
    for (auto& f : files) {
      hash.add(f.lexically_relative(folder).string());
      hash.add(content_of(f));
    }
  }
  return hash.value();
}

uint64_t driver_hash(const std::string& given) {
  fs::path sources = fs::canonical(given);
  if (fs::is_directory(sources)) return content_hash({sources, sources.parent_path() / "uapi"});
  Hash hash;
  hash.add(content_of(sources));
  return hash.value();
}

std::string extra_flags(const std::string& sources) {
  std::string out;
  for (std::string name : {"Kbuild", "Makefile"}) {
    std::istringstream in(content_of(sources + "/" + name));
    for (std::string line; std::getline(in, line);)
      if (line.find("EXTRA_") != std::string::npos && line.find("FLAGS") != std::string::npos)
        out += name + ": " + line + "\n";
  }
  return out;
}

std::string place_of_build(const Kernel& kernel, const std::string& sources,
                           const std::vector<std::string>& words) {
  Hash hash;
  hash.add(fmt::format("{:016x} {:016x}", kernel.hash, driver_hash(sources)));
  for (auto& w : words) hash.add(w);
  return fmt::format("{}/lab/drivers/{}-{:016x}", cache_folder(), kernel.release, hash.value());
}

BuiltDriver build_driver(const Kernel& kernel, const std::string& given,
                         const std::vector<std::string>& words) {
  fs::path sources = fs::canonical(given);
  BuiltDriver built;
  if (fs::is_regular_file(sources)) {
    if (sources.extension() != ".ko")
      throw Error({Errc::usage, "read --driver", given, "it is no .ko file and no folder", "", 0});
    built.module = sources;
    return built;
  }
  if (!fs::exists(sources / "Makefile") && !fs::exists(sources / "Kbuild"))
    throw Error({Errc::usage, "read --driver", given, "no Makefile or Kbuild in it",
                 "give the folder of the module's sources", 0});
  fs::path place = place_of_build(kernel, sources, words),
           fresh = place.string() + fmt::format(".{}", ::getpid());
  built.module = module_in(place);
  built.cached = !built.module.empty();
  if (built.cached) return built;
  fs::remove_all(fresh);
  fs::create_directories(fresh / sources.filename());
  Clock::time_point start = Clock::now();
  auto command = build_command(kernel, sources, fresh);
  command.insert(command.end(), words.begin(), words.end());
  Captured got = run_captured(command, {}, build_limit, {.stop = [] { return told_to_stop(); }});
  built.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  built.log = got.output + got.errors;
  if (got.timed_out) built.log += fmt::format("\nno end within {}\n", to_string(build_limit));
  if (got.status == 0 && !module_in(fresh).empty()) {
    std::error_code ec;
    fs::rename(fresh, place, ec);  // somebody else may have been faster
    built.module = module_in(place);
  }
  std::error_code ec;
  fs::remove_all(fresh, ec);
  return built;
}

std::string build_selftest() {
  std::string sources = share_folder() + "/shim/kmod/selftest";
  auto hash = content_hash({sources, share_folder() + "/shim/uapi"});
  fs::path program = fs::path(cache_folder()) / "lab/selftest" / fmt::format("kz-selftest-{:016x}", hash);
  if (fs::exists(program)) return program;
  fs::create_directories(program.parent_path());
  std::string fresh = program.string() + fmt::format(".{}", ::getpid());
  Captured got = run_captured({"/usr/bin/make", "-s", "-C", sources, "OUT=" + fresh}, {}, build_limit);
  if (got.status != 0)
    throw Error({Errc::unsupported, "build", "the driver's self test", last_line(got.errors),
                 "install what tools/dev/deps.sh lists", 0});
  fs::rename(fresh, program);
  return program;
}

}  // namespace kz::lab
