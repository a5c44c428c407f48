// SPDX-License-Identifier: GPL-2.0-or-later
// What the host does to the device of a running guest: errors of its link, loss and return, removal, power cut.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/lab/qmp.h"

namespace kz::lab {

class GuestDevice {
 public:
  // `directory`: of a running boot (guest.json in it). Throws Error(not_found) where none runs there.
  explicit GuestDevice(const std::string& directory);

  // An error message that arrives at the root port, by the names of QEMU's pcie_aer_inject_error: RCVR
  // (receiver error, correctable), COMP_TIME (completion timeout, non-fatal), DLP (data link protocol, fatal),
  // SDN (surprise down, fatal) and others. Throws Error(status) for a name that QEMU does not know.
  void link_error(const std::string& kind);
  // The device answers nothing but all ones, or again what it should. softtpu only, like the next.
  void set_gone(bool gone);
  // What its Link Status says: lanes and speed (1: 2.5 GT/s ... 5: 32 GT/s). 0: unchanged.
  void set_link(unsigned width, unsigned speed);
  // Clears Presence Detect State at the port, as a hot-plug slot does when the card is pulled. QEMU 11 survives it
  // with MSI only (softtpu:irq=msi).
  void pull_out();
  // The orderly way, over the attention button: the guest gives the device up first.
  void unplug();
  // A new device at the same socket.
  void plug_in();
  // The whole machine loses its power: nothing is written back, nothing is shut down.
  void cut_power();
  // A line of QEMU's human monitor.
  std::string monitor(const std::string& line);
  // A request to softtpu's control socket. Throws Error(status) with its error.
  nlohmann::json control(const nlohmann::json& request);

 private:
  nlohmann::json guest_;
  Qmp qmp_;
};

}  // namespace kz::lab
