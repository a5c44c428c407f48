// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/node.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "shim/base/units.h"
#include "shim/dev/call.h"

namespace kz::dev {
namespace {

namespace fs = std::filesystem;

constexpr const char* subsystem = "kz";  // the driver's device class
// A user that has just ended is on the device until the kernel has let go of its file, and in telemetry until
// the firmware's next beat.
constexpr auto others_leave = 1s;

[[noreturn]] void not_a_node(const std::string& path, const std::string& what) {
  throw Error(
      {Errc::usage, "open", path, what, "name a node of the reference driver, such as dev:/dev/kz0", 0});
}

// The kernel's name of the character device.
std::string look_at(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      throw Error({Errc::not_found, "open", path, "there is no such node",
                   "load the driver (insmod kz_accel.ko); kangzao ls shows nodes", errno});
    throw_errno("open", path);
  }
  if (!S_ISCHR(st.st_mode)) not_a_node(path, "it is no character device");
  fs::path link = fmt::format("/sys/dev/char/{}:{}", major(st.st_rdev), minor(st.st_rdev));
  std::error_code ec;
  if (!fs::exists("/sys/dev/char", ec))
    return fs::path(path).filename();  // no sysfs here: ask the node itself
  fs::path real = fs::canonical(link, ec);
  if (ec)
    throw Error({Errc::not_found, "open", path, "the kernel has no device behind this node",
                 "it is left over from a driver that is gone; kangzao ls shows nodes", 0});
  std::string of = fs::read_symlink(real / "subsystem", ec).filename();
  if (of != subsystem) not_a_node(path, fmt::format("it belongs to '{}', not to the reference driver", of));
  return real.filename();
}

Fd open_file(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd) return fd;
  int err = errno;
  if (err == EACCES || err == EPERM)
    throw Error({Errc::permission, "open", path, "this user may not",
                 "run as root, or join its group (render, with shim/kmod/99-kangzao.rules)", err});
  if (err == ENODEV || err == ENXIO)
    throw Error({Errc::gone, "open", path, "the device behind it is gone", "see the kernel log", err});
  throw_errno("open", path, err);
}

void take_alone(Node& node) {
  auto busy = [&](const char* who) {
    throw Error(
        {Errc::busy, "open", node.path, who, "end it first; tests must have the device for themselves", 0});
  };
  node.lock = open_file(node.path);
  if (::flock(node.lock.get(), LOCK_EX | LOCK_NB) != 0) busy("another program of this suite has it");
  if (node.info.state != KZ_STATE_LIVE) return;
  for (Deadline deadline(others_leave); others_have_contexts(node.fd.get()); ::poll(nullptr, 0, 10))
    if (deadline.passed()) busy("somebody else has a context on the device");
}

}  // namespace

bool others_have_contexts(int fd) {
  kz_ioc_telemetry t{};
  return call(fd, KZ_IOC_TELEMETRY, t) == 0 && t.t.seq != ~0u && t.t.contexts > 0;
}

kz_info read_info(const Node& node) {
  kz_info info{};
  int rc = call(node.fd.get(), KZ_IOC_INFO, info);
  if (rc == -ENOTTY) not_a_node(node.path, "it does not know the reference driver's calls");
  if (rc == -EINVAL)
    throw Error({Errc::unsupported, "ask", node.path,
                 "the driver's interface is another one than this program's",
                 "build driver and program from the same source", EINVAL});
  if (rc < 0) throw_call("ask", node.path, -rc);
  return info;
}

Node open_node(const std::string& path, bool exclusive) {
  Node node;
  node.path = path;
  node.kernel_name = look_at(path);
  node.fd = open_file(path);
  node.info = read_info(node);
  if (node.info.driver_abi != KZ_DRIVER_ABI)
    throw Error({Errc::unsupported, "open", path,
                 fmt::format("the driver's interface is version {}, this program knows {}",
                             node.info.driver_abi, KZ_DRIVER_ABI),
                 "build driver and program from the same source", 0});
  if (exclusive) take_alone(node);
  return node;
}

}  // namespace kz::dev
