// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/control.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "shim/base/error.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::softtpu {

using nlohmann::json;

namespace {

[[noreturn]] void refuse_request(const std::string& detail) {
  throw Error({Errc::usage, "control", "request", detail, {}});
}

std::string command_of(const json& request) {
  if (!request.is_object()) refuse_request("is not a JSON object");
  auto it = request.find("cmd");
  if (it == request.end() || !it->is_string()) refuse_request("has no text member \"cmd\"");
  return it->get<std::string>();
}

const json& fault_of(const json& request) {
  auto it = request.find("fault");
  if (it == request.end() || !it->is_object()) refuse_request("inject needs an object \"fault\"");
  return *it;
}

void only(const json& request, std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : request.items())
    if (std::find(names.begin(), names.end(), name) == names.end())
      refuse_request("unknown member \"" + name + "\"");
}

unsigned whole_number(const json& value, const std::string& name, unsigned most) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > most)
    refuse_request(fmt::format("{} wants a whole number up to {}", name, most));
  return value.get<unsigned>();
}

double celsius(const json& value, const std::string& name) {
  if (!value.is_number() || value.get<double>() < -60 || value.get<double>() > 250)
    refuse_request(name + " wants degrees Celsius, -60 to 250");
  return value.get<double>();
}

void check_set(const json& request) {
  only(request, {"cmd", "link_width", "link_speed", "gone", "temperature", "ambient"});
  for (const auto& [name, value] : request.items()) {
    if (name == "link_width" || name == "link_speed") whole_number(value, name, 1000);
    if (name == "gone" && !value.is_boolean()) refuse_request("gone wants true or false");
    if (name == "temperature" || name == "ambient") celsius(value, name);
  }
}

}  // namespace

json parse_json_line(std::string_view line, const std::string& what) {
  auto deep = std::count_if(line.begin(), line.end(), [](char c) { return c == '[' || c == '{'; });
  if (deep > 256) throw Error({Errc::usage, "read", what, "nests too deep", {}});
  try {
    return json::parse(line);
  } catch (const json::exception& e) {
    throw Error({Errc::usage, "read", what, std::string("is not JSON: ") + e.what(), {}});
  }
}

void Control::check(const json& request) {
  std::string cmd = command_of(request);
  if (cmd == "inject") {
    only(request, {"cmd", "fault"});
    FaultBoard scratch;
    scratch.inject(fault_of(request), true);
  } else if (cmd == "clear") {
    only(request, {"cmd", "id"});
    if (request.contains("id")) whole_number(request["id"], "id", INT_MAX);
  } else if (cmd == "set") {
    check_set(request);
  } else if (cmd == "list" || cmd == "status" || cmd == "quit") {
    only(request, {"cmd"});
  } else {
    refuse_request("unknown cmd \"" + cmd + "\"; there are inject, clear, list, status, set, quit");
  }
}

json Control::handle(const json& request) {
  try {
    return perform(request);
  } catch (const std::exception& e) {
    return {{"error", e.what()}};
  }
}

std::string Control::handle_line(std::string_view line) {
  json answer;
  try {
    answer = handle(parse_json_line(line, "control request"));
  } catch (const std::exception& e) {
    answer = {{"error", e.what()}};
  }
  return answer.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

json Control::perform(const json& request) {
  json ok = {{"ok", true}};
  std::string cmd = command_of(request);
  if (cmd == "inject") {
    only(request, {"cmd", "fault"});
    ok["id"] = faults_.inject(fault_of(request), state_.client);
    return ok;
  }
  check(request);
  if (cmd == "clear") faults_.clear(request.contains("id") ? request["id"].get<int>() : 0);
  if (cmd == "list") ok["faults"] = faults_.list();
  if (cmd == "status") return status();
  if (cmd == "set") set(request);
  if (cmd == "quit") state_.quit = true;
  return ok;
}

void Control::set(const json& request) {
  std::optional<unsigned> width, speed;
  if (request.contains("link_width")) width = request["link_width"].get<unsigned>();
  if (request.contains("link_speed")) speed = request["link_speed"].get<unsigned>();
  if (width || speed) device_.set_link(width, speed);
  if (request.contains("gone")) device_.set_gone(request["gone"].get<bool>());
  if (request.contains("ambient")) device_.engine().set_ambient(request["ambient"].get<double>());
  if (request.contains("temperature")) device_.engine().set_temperature(request["temperature"].get<double>());
}

json Control::status() {
  kz_telemetry t{};
  Engine& engine = device_.engine();
  engine.read_telemetry(t);
  return {{"ok", true},
          {"client", state_.client},
          {"clients", state_.clients},
          {"protocol_errors", state_.protocol_errors},
          {"gone", device_.gone()},
          {"link_width", device_.link_width()},
          {"link_speed", device_.link_speed()},
          {"queues_running", device_.queues_running()},
          {"interrupts", device_.interrupts_raised()},
          {"dma_windows", device_.dma().windows()},
          {"fatal", engine.fatal()},
          {"resets", engine.reset_count()},
          {"reset_reason", engine.reset_reason()},
          {"commands", t.commands},
          {"dma_bytes", t.dma_bytes},
          {"temperature", t.temp_core_mc / 1000.0},
          {"temperature_hbm", t.temp_hbm_mc / 1000.0},
          {"power_watts", t.power_mw / 1000.0},
          {"clock_mhz", t.clock_khz / 1000.0},
          {"hbm_bytes", t.hbm_bytes},
          {"hbm_free_bytes", t.hbm_free_bytes},
          {"contexts", t.contexts}};
}

}  // namespace kz::softtpu
