// SPDX-License-Identifier: GPL-2.0-or-later
// Requests of the control socket and of --script, one JSON object each:
//
//   {"cmd": "inject", "fault": {"row": "D04", "trigger": {...}, "seed": 7, "params": {...}}}  -> {"ok": true,
//   "id": 3}
//   {"cmd": "clear", "id": 3}          ("id" 0 or left out: all)                             -> {"ok": true}
//   {"cmd": "list"}                                                                          -> {"ok": true,
//   "faults": [...]}
//   {"cmd": "status"}                                                                        -> {"ok": true,
//   "client": ...}
//   {"cmd": "set", "link_width": 8, "link_speed": 3, "gone": true, "temperature": 70.5, "ambient": 35} (any
//   of them)
//   {"cmd": "quit"}                                                                          -> {"ok": true}
//
// A request that cannot be done gets {"error": "text"}.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tools/softtpu/device.h"

namespace kz::softtpu {

// What the server knows and the device does not.
struct ServerState {
  bool client = false;           // a client has negotiated
  bool client_came = false;      // one has ever
  uint64_t clients = 0;          // negotiated so far
  uint64_t protocol_errors = 0;  // clients dropped for what they sent
  bool quit = false;
};

class Control {
 public:
  Control(Device& device, FaultBoard& faults, ServerState& state)
      : device_(device), faults_(faults), state_(state) {}

  // Never throws: what goes wrong is in the answer.
  nlohmann::json handle(const nlohmann::json& request);
  // The same for one line of text; the answer ends with a newline.
  std::string handle_line(std::string_view line);
  // Throws Error(usage) for a request that could never be done once a client is connected (for scripts).
  static void check(const nlohmann::json& request);

 private:
  nlohmann::json perform(const nlohmann::json& request);
  nlohmann::json status();
  void set(const nlohmann::json& request);

  Device& device_;
  FaultBoard& faults_;
  ServerState& state_;
};

// Parses one line; throws Error(usage) with the parser's words, also for text that nests too deep.
nlohmann::json parse_json_line(std::string_view line, const std::string& what);

}  // namespace kz::softtpu
