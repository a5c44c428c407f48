// SPDX-License-Identifier: GPL-2.0-or-later
// What a lab run may be asked for, checked before anything is started.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>

#include "shim/base/bdf.h"
#include "shim/base/error.h"
#include "shim/uri.h"
#include "tools/kangzao/runner/safety.h"
#include "tools/lab/lab.h"

namespace kz::lab {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

[[noreturn]] void wrong(const std::string& operation, const std::string& target, const std::string& detail,
                        const std::string& remedy = {}) {
  throw Error({Errc::usage, operation, target, detail, remedy, 0});
}

std::string driver_of(const std::string& bdf, const SystemRoots& roots) {
  std::error_code ec;
  return fs::read_symlink(roots.sys + "/bus/pci/devices/" + bdf + "/driver", ec).filename();
}

// A board is given away whole: all functions of its IOMMU group go with it.
void check_group(const std::string& bdf, const SystemRoots& roots) {
  std::error_code ec;
  std::vector<std::string> others;
  for (auto& e : fs::directory_iterator(roots.sys + "/bus/pci/devices/" + bdf + "/iommu_group/devices", ec)) {
    std::string other = e.path().filename(), driver = driver_of(other, roots);
    std::ifstream in(e.path() / "class");
    unsigned long cls = 0;
    in >> std::hex >> cls;
    constexpr unsigned long bridge = 0x06;
    if (other != bdf && cls >> 16 != bridge && driver != "vfio-pci" && !driver.empty())
      others.push_back(other + " (" + driver + ")");
  }
  if (ec)
    throw Error({Errc::unsupported, "pass through", bdf, "it is in no IOMMU group",
                 "switch the IOMMU on (intel_iommu=on, firmware setup)", 0});
  if (!others.empty())
    throw Error({Errc::busy, "pass through", bdf,
                 fmt::format("its IOMMU group holds {} too", fmt::join(others, ", ")),
                 "bind them to vfio-pci as well", 0});
}

}  // namespace

void check_board(const std::string& address, bool destructive, bool i_know, const SystemRoots& roots) {
  Bdf bdf = parse_bdf(address);
  std::string name = to_string(bdf);
  if (!fs::exists(roots.sys + "/bus/pci/devices/" + name))
    throw Error({Errc::not_found, "pass through", name, "there is no such device",
                 "kangzao ls --all shows what there is", 0});
  if (!destructive)
    wrong("pass through", name, "guests reset it and its data are lost", "say so with --destructive");
  if (auto who = inhabitants(bdf, roots); !who.empty() && !i_know)
    throw Error(
        {Errc::busy, "pass through", name, "refused: " + who.front(), "--i-know to do it all the same", 0});
  if (std::string driver = driver_of(name, roots); driver != "vfio-pci")
    throw Error({Errc::busy, "pass through", name,
                 driver.empty() ? "no driver has it" : "the driver " + driver + " has it",
                 fmt::format("echo vfio-pci >/sys/bus/pci/devices/{}/driver_override, unbind it, and echo {} "
                             ">/sys/bus/pci/drivers_probe",
                             name, name),
                 0});
  check_group(name, roots);
}

void check_options(const LabOptions& o) {
  if (o.kernel.empty() && !o.modules.empty()) wrong("read --modules", o.modules, "it goes with --kernel");
  const Selection& tests = o.run.selection;
  if (tests.profile == "none" && !(tests.groups.empty() && tests.filters.empty()))
    wrong("read --profile", "none", "no test runs, but --group or --filter names some");
  if (o.kernels.empty() && o.kernel.empty()) wrong("read --kernels", "''", "no kernel is named");
  if (o.kernel.empty())
    for (auto& role : o.kernels)
      if (std::ranges::find(kernel_roles(), role) == kernel_roles().end()) find_kernel(role);  // throws
  if (!o.kernel.empty()) given_kernel(o.kernel, o.modules);
  const auto boards = {!o.vfio.empty(), !o.vfio_user.empty(), !o.pci.empty()};
  if (std::ranges::count(boards, true) > 1)
    wrong("read the device", fmt::format("{} {} {}", o.vfio, o.vfio_user, o.pci),
          "there is one: --vfio, --vfio-user or --pci");
  if (std::ranges::count(boards, true) == 1 && !o.tpu.empty())
    wrong("read --tpu", o.tpu, "it is for the software TPU, which is not used");
  if (!o.tpu.empty()) softtpu_arguments(parse_uri("softtpu:" + o.tpu).options);
  if (!o.driver.empty() && !fs::exists(o.driver))
    wrong("read --driver", o.driver, "there is no such file or folder");
  if (!o.pci.empty() && o.driver.empty())
    wrong("read --pci", o.pci, "the reference driver does not drive it", "name its driver with --driver");
  for (auto& pair : o.add)
    if (auto file = added_file(pair); !fs::exists(file.source))
      wrong("read --add", pair, "there is no such file");
  if (!o.load.empty() && !fs::exists(o.load)) wrong("read --load", o.load, "there is no such file");
  if (!o.vfio.empty()) check_board(o.vfio, o.run.destructive, o.run.i_know, {});
  if (o.vfio_user.empty()) return;
  if (!fs::exists(o.vfio_user))
    throw Error({Errc::not_found, "connect to", o.vfio_user, "there is no such socket",
                 "start the device model first", 0});
  if (!fs::is_socket(o.vfio_user)) wrong("connect to", o.vfio_user, "it is no socket");
  if (fs::absolute(o.vfio_user).string().size() >= sizeof sockaddr_un::sun_path)
    wrong("connect to", o.vfio_user, "the path is too long for a socket");
}

GuestFile added_file(const std::string& pair) {
  auto colon = pair.find(':');
  if (colon == std::string::npos) wrong("read --add", pair, "wants FILE:PLACE");
  std::string source = pair.substr(0, colon), place = pair.substr(colon + 1);
  if (place.ends_with("/")) place += fs::path(source).filename();
  while (place.starts_with("/")) place.erase(0, 1);
  return {.path = place, .source = source, .program = ::access(source.c_str(), X_OK) == 0};
}

std::vector<std::string> split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

std::string shell_word(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string rerun_line(const LabOptions& o, const Kernel& kernel, const std::string& test) {
  std::string out = "kangzao lab";
  auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) out += fmt::format(" {} {}", option, shell_word(value));
  };
  add("--kernels", kernel.from_root() ? kernel.name : "");
  add("--kernel", kernel.from_root() ? "" : o.kernel);
  add("--modules", kernel.from_root() ? "" : o.modules);
  add("--profile", test.empty() ? "none" : o.run.selection.profile);
  add("--filter", test);
  if (test.empty())
    for (auto& g : o.run.selection.groups) add("--group", g);
  if (!test.empty()) out += fmt::format(" --seed {}", o.run.seed);
  for (auto& [option, value] : std::initializer_list<std::pair<const char*, const std::string&>>{
           {"--device", o.device},
           {"--driver", o.driver},
           {"--vfio", o.vfio},
           {"--vfio-user", o.vfio_user},
           {"--pci", o.pci},
           {"--qemu-words", o.qemu_words},
           {"--load-command", o.run.load_command},
           {"--tpu", o.tpu},
           {"--append", o.append},
           {"--qemu", o.qemu},
           {"--load", o.load}})
    add(option, value);
  for (auto& m : o.with) add("--with", m);
  for (auto& f : o.add) add("--add", f);
  add("--make", fmt::format("{}", fmt::join(o.make, ",")));
  const LabOptions usual;
  if (!o.load.empty() && o.load_s != usual.load_s) out += fmt::format(" --load-time {}", o.load_s);
  if (o.limit_s != usual.limit_s) out += fmt::format(" --limit {}", o.limit_s);
  for (auto& [option, on] : std::initializer_list<std::pair<const char*, bool>>{
           {"--iommu", o.iommu}, {"--destructive", o.run.destructive}, {"--i-know", o.run.i_know}})
    if (on) out += fmt::format(" {}", option);
  return out;
}

json LabOptions::to_json() const {
  json out = run.to_json();
  out["lab"] = {{"kernels", kernels},     {"device", device},   {"tpu", tpu},
                {"kernel", kernel},       {"modules", modules}, {"driver", driver},
                {"vfio_user", vfio_user}, {"vfio", vfio},       {"qemu", qemu},
                {"load", load},           {"load_s", load_s},   {"limit_s", limit_s},
                {"append", append},       {"make", make},       {"debug", debug},
                {"iommu", iommu},         {"pci", pci},         {"qemu_words", qemu_words},
                {"with", with},           {"add", add}};
  return out;
}

LabOptions LabOptions::from_json(const json& j) {
  LabOptions o;
  o.run = RunOptions::from_json(j);
  json l = j.value("lab", json::object());
  o.kernels = l.value("kernels", o.kernels);
  for (auto [name, to] : {std::pair{"device", &o.device},
                          {"tpu", &o.tpu},
                          {"kernel", &o.kernel},
                          {"modules", &o.modules},
                          {"driver", &o.driver},
                          {"vfio_user", &o.vfio_user},
                          {"vfio", &o.vfio},
                          {"qemu", &o.qemu},
                          {"pci", &o.pci},
                          {"qemu_words", &o.qemu_words},
                          {"load", &o.load},
                          {"append", &o.append}})
    *to = l.value(name, "");
  o.make = l.value("make", o.make);
  o.with = l.value("with", o.with);
  o.add = l.value("add", o.add);
  o.load_s = l.value("load_s", o.load_s);
  o.limit_s = l.value("limit_s", o.limit_s);
  o.debug = l.value("debug", false);
  o.iommu = l.value("iommu", false);
  return o;
}

}  // namespace kz::lab
