// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/guest_device.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "shim/base/error.h"

namespace kz::lab {
using nlohmann::json;
namespace {

constexpr auto answer_limit = 20s;
// Where the root port's Slot Status and Slot Control lie: QEMU's pcie-root-port has its PCI Express
// capability at 0x54, Slot Control at +0x18. Configuration mechanism #1 (0xcf8, 0xcfc) with the port at
// 00:01.0 or 00:02.0.
constexpr unsigned slot_control = 0x54 + 0x18;

json read_guest(const std::string& directory) {
  std::ifstream in(directory + "/guest.json");
  json guest = json::parse(in, nullptr, false);
  if (!in.is_open() || !guest.is_object() || !guest.contains("control"))
    throw Error({Errc::not_found, "find a guest in", directory, "no guest.json that names one",
                 "give the folder of a boot: RUN/KERNEL/boot-1", 0});
  return guest;
}

}  // namespace

GuestDevice::GuestDevice(const std::string& directory)
    : guest_(read_guest(directory)), qmp_(Qmp::connect(guest_["control"])) {
  qmp_.greet(Deadline(answer_limit));
}

std::string GuestDevice::monitor(const std::string& line) {
  return qmp_.monitor(line, Deadline(answer_limit));
}

void GuestDevice::link_error(const std::string& kind) {
  std::string said = monitor("pcie_aer_inject_error rp0 " + kind);
  if (said.find("OK") == std::string::npos)
    throw Error(
        {Errc::status, "inject link error", kind, said.empty() ? "QEMU did not confirm it" : said, "", 0});
}

json GuestDevice::control(const json& request) {
  if (!guest_.contains("softtpu"))
    throw Error({Errc::unsupported, "control", "the device", "it is no softtpu of the lab", "", 0});
  std::string path = guest_["softtpu"]["control"], line = request.dump() + "\n", answer;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw_errno("connect to", path);
  if (::send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    throw_errno("write to", path);
  for (Deadline limit(answer_limit); answer.find('\n') == std::string::npos;) {
    pollfd p{fd.get(), POLLIN, 0};
    char chunk[4096];
    ssize_t n = ::poll(&p, 1, 200) > 0 ? ::read(fd.get(), chunk, sizeof chunk) : -1;
    if (n > 0) answer.append(chunk, static_cast<size_t>(n));
    if (n == 0 || limit.passed())
      throw Error({n == 0 ? Errc::gone : Errc::timeout, "control", "softtpu",
                   "no answer to " + request.dump(), "", 0});
  }
  json got = json::parse(answer, nullptr, false);
  if (!got.is_object() || got.contains("error"))
    throw Error({Errc::status, "control", "softtpu", got.is_object() ? got["error"].dump() : answer, "", 0});
  return got;
}

void GuestDevice::set_gone(bool gone) { control({{"cmd", "set"}, {"gone", gone}}); }

void GuestDevice::set_link(unsigned width, unsigned speed) {
  json request{{"cmd", "set"}};
  if (width != 0) request["link_width"] = width;
  if (speed != 0) request["link_speed"] = speed;
  control(request);
}

void GuestDevice::pull_out() {
  // 00:DD.F of the port as the guest numbers it, from "Bus  0, device   1, function 0:" above "id "rp0"".
  std::string pci = monitor("info pci"), head;
  auto id = pci.find("id \"rp0\"");
  auto at = id == std::string::npos ? id : pci.rfind("Bus ", id);
  unsigned bus = 0, device = 0, function = 0;
  if (at == std::string::npos ||
      std::sscanf(pci.c_str() + at, "Bus %u, device %u, function %u", &bus, &device, &function) != 3)
    throw Error({Errc::not_found, "find", "root port rp0", "QEMU does not list it", "", 0});
  unsigned address = 0x80000000u | bus << 16 | device << 11 | function << 8 | slot_control;
  qmp_.execute("stop", json::object(), Deadline(answer_limit));
  // Power controller on and off again with the power indicator off: QEMU takes the card out, presence falls.
  monitor(fmt::format("o /w 0xcf8 {:#x}", address));
  monitor("o /h 0xcfc 0x7f1");
  monitor("o /h 0xcfc 0x3f1");
  qmp_.execute("cont", json::object(), Deadline(answer_limit));
}

void GuestDevice::unplug() { qmp_.execute("device_del", {{"id", "tpu0"}}, Deadline(answer_limit)); }

void GuestDevice::plug_in() {
  if (!guest_.contains("softtpu"))
    throw Error({Errc::unsupported, "plug in", "the device", "it is no softtpu of the lab", "", 0});
  // The name is free once the guest has let the old one go and QEMU has taken it apart; the model once it has
  // seen that its old client is gone.
  for (Deadline limit(answer_limit);;) {
    try {
      qmp_.execute("device_add", guest_["softtpu"]["device"], Deadline(answer_limit));
      return;
    } catch (const Error& e) {
      const std::string why = e.what();
      bool not_yet = why.find("Duplicate") != std::string::npos || why.find("socket") != std::string::npos;
      if (!not_yet || limit.passed()) throw;
      ::poll(nullptr, 0, 100);
    }
  }
}

void GuestDevice::cut_power() {
  try {
    qmp_.execute("quit", json::object(), Deadline(answer_limit));
  } catch (const Error& e) {
    if (e.code() != Errc::gone) throw;  // it may be off before it answered
  }
}

}  // namespace kz::lab
