// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/target.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/pci/sysfs.h"
#include "shim/uri.h"
#include "tests/harness/session.h"
#include "tests/harness/test.h"
#include "tests/kmod/module.h"
#include "tests/kmod/text_file.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

constexpr const char* bus = "/sys/bus/pci";

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string link_name(const std::string& path) {
  std::error_code ec;
  auto real = fs::read_symlink(path, ec);
  return ec ? "" : real.filename().string();
}

// Ends the child, or leaves it where no signal reaches it.
void end_child(pid_t pid) {
  ::kill(pid, SIGKILL);
  wait_until(2s, [&] { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
}

std::string slot_of_node(const std::string& node) {
  struct stat s {};
  if (::stat(node.c_str(), &s) != 0 || !S_ISCHR(s.st_mode)) return {};
  std::error_code ec;
  fs::path path =
      fs::canonical(fmt::format("/sys/dev/char/{}:{}/device", major(s.st_rdev), minor(s.st_rdev)), ec);
  return ec ? "" : path.filename().string();
}

// Where nothing is bound now: the only PCI driver of the module.
std::string driver_of_module(const std::string& module) {
  std::error_code ec;
  for (auto& e : fs::directory_iterator("/sys/module/" + module + "/drivers", ec))
    if (std::string name = e.path().filename(); name.starts_with("pci:")) return name.substr(4);
  return {};
}

void take_module(Target& t) {
  t.file = env("KANGZAO_MODULE");
  if (!t.driver.empty()) t.module = link_name(fmt::format("{}/drivers/{}/module", bus, t.driver));
  if (t.module.empty() && !t.file.empty()) t.module = module_info(t.file).name;
  // The reference driver's node tells whose it is, even while the driver is away.
  if (t.module.empty() && t.ours() && exists("/lab/kz_accel.ko")) t.module = "kz_accel";
  if (t.file.empty() && !t.module.empty()) t.file = find_module_file(t.module);
}

}  // namespace

std::string where_it_stands(int pid) {
  std::string out;
  std::error_code ec;
  for (auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), ec)) {
    std::string stat = text_file(task.path() / "stat");
    size_t at = stat.rfind(") ");
    out += fmt::format("thread {} state {} in {}", task.path().filename().string(),
                       at == std::string::npos ? '?' : stat[at + 2], value_of(task.path() / "wchan"));
    std::string stack = value_of(task.path() / "stack");
    out += stack.empty() ? "; " : " stack:\n" + stack + "\n";
  }
  return out;
}

bool wait_until(std::chrono::nanoseconds budget, const std::function<bool()>& seen) {
  for (Deadline deadline(budget); !seen(); ::poll(nullptr, 0, 3))
    if (deadline.passed()) return seen();
  return true;
}

Outcome bounded(std::chrono::nanoseconds budget, const std::function<int()>& act) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
  Fd read(ends[0]), write(ends[1]);
  const Deadline deadline(budget);
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("start", "a process");
  if (pid == 0) {
    int value = 0;
    try {
      value = act();
    } catch (const std::exception& e) {  // in a copy of the test: it must not go on there
      std::fprintf(stderr, "in a step's process: %s\n", e.what());
      ::_exit(2);
    }
    if (::write(ends[1], &value, sizeof value) != sizeof value) ::_exit(1);
    ::_exit(0);
  }
  write.reset();
  Outcome out;
  pollfd p{read.get(), POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(budget).count();
  int ready;
  do ready = ::poll(&p, 1, static_cast<int>(ms));
  while (ready < 0 && errno == EINTR && !deadline.passed());
  out.in_time = ready == 1 && ::read(read.get(), &out.value, sizeof out.value) == sizeof out.value;
  out.seconds = std::chrono::duration<double>(deadline.elapsed()).count();
  int status = 0;
  if (out.in_time) {
    ::waitpid(pid, nullptr, 0);
  } else if (ready == 1 && ::waitpid(pid, &status, 0) == pid) {  // its end of the pipe closed without a word
    out.died = WIFSIGNALED(status)
                   ? fmt::format("its process died by signal {}", WTERMSIG(status))
                   : fmt::format("its process ended with exit status {}", WEXITSTATUS(status));
  } else {
    out.hang = where_it_stands(pid), end_child(pid);
  }
  return out;
}

int in_time(const std::string& what, std::chrono::nanoseconds budget, const std::function<int()>& act) {
  Outcome out = bounded(budget, act);
  if (out.in_time) return out.value;
  if (!out.died.empty()) {
    evidence(ev::driver, {{"what", "died"}, {"step", what}, {"text", out.died}});
    throw Error({Errc::io, what, "the driver", out.died, "dmesg has the kernel's reason", 0});
  }
  evidence(ev::driver, {{"what", "hangs"}, {"step", what}, {"stack", out.hang}});
  throw Error({Errc::timeout, what, "the driver",
               fmt::format("no end within {}; it stands in: {}", to_string(budget), out.hang), "", 0});
}

bool Target::can_reload() const {
  return !module.empty() && !file.empty() && others_of_module(module, slot).empty();
}
std::string Target::bound_to() const { return link_name(sysfs() + "/driver"); }
std::string Target::override_now() const {
  const std::string now = value_of(sysfs() + "/driver_override");
  return now == "(null)" ? "" : now;
}
bool Target::present() const { return exists(sysfs() + "/config"); }

std::vector<uint64_t> Target::bars() const {
  std::vector<uint64_t> out;
  const auto all = read_pci_info(parse_bdf(slot), {}, false).resources;
  for (size_t i = 0; i < 6 && i < all.size(); ++i) out.push_back(all[i].assigned() ? all[i].size() : 0);
  return out;
}

int Target::bind(const std::string& name) const {
  return in_time("bind " + name, step_limit,
                 [&] { return write_file(fmt::format("{}/drivers/{}/bind", bus, name), slot); });
}
int Target::unbind() const {
  return in_time("unbind", step_limit, [&] {
    const std::string name = bound_to();
    return name.empty() ? -ENODEV : write_file(fmt::format("{}/drivers/{}/unbind", bus, name), slot);
  });
}
int Target::load(const std::string& params) const {
  const auto image = read_module(file);
  return in_time("load " + module, step_limit, [&] { return load_module(image, params); });
}
int Target::unload() const {
  if (auto others = others_of_module(module, slot); !others.empty())
    throw Error({Errc::busy, "unload", module, "it also drives " + others.front(), "", 0});
  return in_time("unload " + module, step_limit, [&] { return unload_module(module); });
}
int Target::unload_when_free(std::chrono::nanoseconds budget) const {
  int rc = 0;
  wait_until(budget, [&] { return (rc = unload()) != -EAGAIN; });
  return rc;
}
int Target::remove_function() const {
  return in_time("remove the function", step_limit, [&] { return write_file(sysfs() + "/remove", "1"); });
}
int Target::rescan() const {
  return in_time("rescan the bus", step_limit, [&] { return write_file(std::string(bus) + "/rescan", "1"); });
}

bool Target::wait_ready(std::chrono::nanoseconds budget) const {
  return wait_until(budget,
                    [&] { return bound_to() == driver && (node.empty() || slot_of_node(node) == slot); });
}

std::string Target::restore() const {
  if (!present()) rescan();
  if (!wait_until(5s, [&] { return present(); })) return "the function does not come back on a rescan";
  if (override_now() != override_was)
    write_file(sysfs() + "/driver_override", override_was.empty() ? "\n" : override_was);
  if (!module.empty() && !is_loaded(module))
    if (int rc = file.empty() ? -ENOENT : load(); rc != 0 && rc != -EEXIST)
      return fmt::format("module {} does not load: {}", module, std::strerror(-rc));
  if (bound_to() == driver && wait_ready(5s)) return {};
  if (!bound_to().empty() && bound_to() != driver) unbind();
  int rc = bound_to().empty() ? bind() : 0;
  if (!wait_ready(10s))
    return fmt::format("driver {} does not take {} again: {}", driver, slot,
                       rc != 0 ? std::strerror(-rc) : "no node within 10 s");
  return {};
}

std::string slot_of_run() {
  const Uri uri = parse_uri(Session::get().uri());
  std::string slot = env("KANGZAO_BDF");
  if (slot.empty() && uri.scheme == "dev") slot = slot_of_node(uri.path);
  if (slot.empty() && uri.scheme == "pci") slot = to_string(parse_bdf(uri.path));
  return slot;
}

Target find_target() {
  const Uri uri = parse_uri(Session::get().uri());
  if (uri.scheme != "dev" && uri.scheme != "pci")
    skip("no kernel driver is under test: name a node (dev:/dev/kz0) or a function (pci:BDF)");
  if (::geteuid() != 0) block("needs root: modules are loaded and functions bound by root only");
  Target t;
  if (uri.scheme == "dev") t.node = uri.path;
  t.slot = slot_of_run();
  if (t.slot.empty()) block("nobody knows which PCI function it is");
  t.load_command = env("KANGZAO_LOAD_COMMAND");
  t.driver = t.bound_to();
  t.override_was = t.override_now();
  take_module(t);
  if (t.driver.empty()) t.driver = driver_of_module(t.module);
  if (t.driver.empty() && !t.file.empty()) {
    expect_log(t.module, 1u << 0 | 1u << 12 | 1u << 13);
    if (const int rc = t.load(); rc != 0 && rc != -EEXIST) {
      const auto needs = module_info(t.file).depends;
      block(fmt::format("module {} does not load: {}{}", t.module, std::strerror(-rc),
                        rc == -ENOENT && !needs.empty()
                            ? fmt::format("; it needs {}: modprobe them first", fmt::join(needs, ", "))
                            : "; dmesg has the kernel's reason, kangzao changes explains it"));
    }
    t.driver = driver_of_module(t.module);
  }
  if (t.driver.empty())
    skip("no driver is bound to " + t.slot + "; bind one, or give its file with --module");
  t.parameters = parameters_in_force(t.module);
  if (std::string why = t.restore(); !why.empty()) block(why);
  return t;
}

void need_module(const Target& t) {
  if (t.module.empty()) skip("the driver " + t.driver + " is built into the kernel");
  if (auto others = others_of_module(t.module, t.slot); !others.empty())
    skip(fmt::format("module {} also drives {}: unloading it would take {} away", t.module,
                     fmt::join(others, ", "), others.size() == 1 ? "that" : "those"));
  if (t.file.empty()) block("the file of module " + t.module + " is not known; give it with --module FILE");
  std::vector<std::string> holders;
  std::error_code ec;
  for (auto& e : std::filesystem::directory_iterator("/sys/module/" + t.module + "/holders", ec))
    holders.push_back(e.path().filename());
  if (!holders.empty())
    block(fmt::format("module {} is used by {}: unload that first", t.module, fmt::join(holders, ", ")));
  if (const int users = module_users(t.module); users > 0 && !t.ours())
    block(fmt::format("module {} has {} users before anything was done: end what has its nodes open",
                      t.module, users));
}

void need_our_calls(const Target& t) {
  if (!t.ours()) skip("needs the reference driver's calls: --device dev:/dev/kz0");
}

void check_bars(const Target& t, const std::vector<uint64_t>& before) {
  const auto now = t.bars();
  for (size_t i = 0; i < before.size() && i < now.size(); ++i) {
    if (now[i] == before[i]) continue;
    evidence(ev::driver, {{"what", "bar_lost"}, {"bar", i}, {"bytes", before[i]}});
    warn(fmt::format(
        "after the rescan BAR{} ({} bytes) has no address: the bridge's window does not take it again; where "
        "the kernel says \"clipped ... for e820 entry\", boot with pci=no_e820",
        i, before[i]));
  }
}

void need_aperture(const Target& t) {
  if (!exists(t.sysfs() + "/resource4"))
    skip("the aperture has no address (a rescan lost it? boot with pci=no_e820): nothing can be mapped");
}

GiveBack::~GiveBack() {
  try {
    if (std::string why = target_.restore(); !why.empty())
      ADD_FAILURE() << "the device is not given back as found: " << why;
  } catch (const std::exception& e) {
    ADD_FAILURE() << "the device is not given back as found: " << e.what();
  }
}

}  // namespace kz::test
