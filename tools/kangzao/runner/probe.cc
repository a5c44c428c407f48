// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/runner/probe.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <functional>
#include <iostream>

#include "shim/base/error.h"
#include "shim/device.h"
#include "tools/journal/reader.h"
#include "tools/kangzao/runner/process.h"

namespace kz {
namespace {

using nlohmann::json;

// Sent by an administrator, a limit or a host out of memory, never by what a device does.
bool is_hosts(int signal) { return signal == SIGKILL || signal == SIGXCPU || signal == SIGTERM; }

ProbeResult ask(const char* what, const std::string& uri, std::chrono::milliseconds limit,
                const CaptureRules& rules) {
  Captured got = run_captured({program_directory() + "/kangzao", what, "--device", uri}, {}, limit, rules);
  ProbeResult result;
  json answer = parse_record(got.output);
  if (got.timed_out) {
    result.code = "timeout";
    bool stopped = rules.stop && rules.stop();
    result.text = stopped ? "interrupted" : fmt::format("no answer within {} s", limit.count() / 1000);
  } else if (WIFSIGNALED(got.status) && is_hosts(WTERMSIG(got.status))) {
    throw Error({Errc::io, "ask the device through", what, "it was ended by " + describe_status(got.status),
                 "see the limits of memory and time of this host, then use 'kangzao resume'", 0});
  } else if (!answer.is_object()) {
    result.code = "crash";
    result.text = fmt::format("{} ended with {}", what, describe_status(got.status));
    if (std::string said = last_line(got.errors); !said.empty()) result.text += ": " + said;
  } else if (answer.contains("error")) {
    result.code = text_of(answer["error"], "code");
    result.text = text_of(answer["error"], "text");
  } else {
    result.ok = WIFEXITED(got.status) && WEXITSTATUS(got.status) == 0;
    result.data = std::move(answer);
  }
  return result;
}

int answer(const std::function<json()>& body) {
  json out;
  try {
    out = body();
  } catch (const Error& e) {
    out = {{"error", {{"code", to_string(e.code())}, {"text", e.what()}}}};
  } catch (const std::exception& e) {
    out = {{"error", {{"code", "internal"}, {"text", e.what()}}}};
  }
  std::cout << out.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  return out.contains("error") ? 1 : 0;
}

json describe(Device& d) {
  const Identity& id = d.identity();
  json out = {{"id", id.stable_id()},
              {"name", id.name},
              {"vendor", fmt::format("{:04x}", id.vendor)},
              {"device", fmt::format("{:04x}", id.device)},
              {"revision", id.revision},
              {"class", fmt::format("{:06x}", id.class_code)},
              {"serial", id.serial},
              {"driver", id.driver}};
  if (id.bdf) out["bdf"] = to_string(*id.bdf);
  const Capabilities& caps = d.capabilities();
  for (Cap c : caps.have) out["capabilities"].push_back(to_string(c));
  if (caps.has(Cap::config_read)) {
    ConfigSpace& config = d.config();
    for (auto& cap : walk_capabilities(config).found)
      if (!cap.extended && cap.id == 0x10 && cap.offset + 0x14u <= config.size()) {
        uint16_t status = config.read16(cap.offset + 0x12u);  // Link Status, PCI Express r6.0, 7.5.3.8
        out["link"] = fmt::format("speed {} x{}", status & 0xf, status >> 4 & 0x3f);
      }
  }
  if (caps.has(Cap::telemetry)) {
    Telemetry t = d.telemetry();
    if (t.firmware_version) out["firmware"] = firmware_text(*t.firmware_version);
    if (t.hbm_bytes) out["hbm_bytes"] = *t.hbm_bytes;
  }
  return out;
}

void expect(bool good, const std::string& what) {
  if (!good) throw Error({Errc::bad_data, "check health", what, "wrong result", "", 0});
}

void small_dma(Device& d, Context& context, Queue& queue) {
  constexpr uint64_t n = 8192;
  auto out = d.dma_buffer({.size = {n}}), back = d.dma_buffer({.size = {n}});
  auto hbm = context.alloc({n});
  for (uint64_t i = 0; i < n; ++i) out->bytes()[i] = static_cast<std::byte>(i * 37 + (i >> 8));
  run_ok(queue, {cmd::Copy{at(out->iova()), at(hbm->addr()), n}});
  run_ok(queue, {cmd::Copy{at(hbm->addr()), at(back->iova()), n}});
  expect(std::memcmp(out->bytes().data(), back->bytes().data(), n) == 0, "8 KiB to HBM and back");
}

// 16 x 16 of integers that f32 holds exactly.
void small_matmul(Device& d, Context& context, Queue& queue) {
  constexpr uint32_t n = 16;
  constexpr uint64_t bytes = n * n * sizeof(float);
  auto host = d.dma_buffer({.size = {3 * bytes}});
  auto hbm = context.alloc({3 * bytes});
  auto* f = reinterpret_cast<float*>(host->bytes().data());
  for (uint32_t i = 0; i < n * n; ++i) {
    f[i] = static_cast<float>(i % 7) - 3;
    f[n * n + i] = static_cast<float>(i % 5) - 2;
  }
  run_ok(queue, {cmd::Copy{at(host->iova()), at(hbm->addr()), 2 * bytes}});
  run_ok(
      queue,
      {cmd::Matmul{
          .a = hbm->addr(), .b = hbm->addr() + bytes, .c = hbm->addr() + 2 * bytes, .m = n, .n = n, .k = n}});
  run_ok(queue, {cmd::Copy{at(hbm->addr() + 2 * bytes), at(host->iova() + 2 * bytes), bytes}});
  for (uint32_t r = 0; r < n; ++r)
    for (uint32_t c = 0; c < n; ++c) {
      float sum = 0;
      for (uint32_t k = 0; k < n; ++k) sum += f[r * n + k] * f[n * n + k * n + c];
      expect(f[2 * n * n + r * n + c] == sum, fmt::format("16x16x16 f32 matmul, element {},{}", r, c));
    }
}

json health(Device& d) {
  const Capabilities& caps = d.capabilities();
  json steps = json::array({"identify"});
  if (caps.has(Cap::config_read)) expect(d.config().read16(0) != 0xffff, "vendor id in config space");
  if (caps.has(Cap::queues) && caps.has(Cap::contexts)) {
    auto context = d.create_context();
    auto queue = context->open_queue();
    run_ok(*queue, {cmd::Nop{}});
    steps.push_back("nop");
    if (caps.has(Cap::dma) && caps.has(Cap::hbm_alloc)) {
      small_dma(d, *context, *queue);
      steps.push_back("dma");
      if (caps.has(Cap::matmul_f32)) {
        small_matmul(d, *context, *queue);
        steps.push_back("matmul");
      }
    }
  }
  return {{"steps", steps}};
}

// A step of the ladder; what came of it goes to `tried`.
struct Rung {
  const char* step;
  std::function<void(Device&)> act;
  bool bring_up;
};
Rung open_again() {
  return {"open", [](Device&) {}, true};
}

bool attempt(const std::string& uri, const Rung& rung, json& tried) {
  try {
    auto device = open_device(uri, {.bring_up = rung.bring_up});
    rung.act(*device);
    health(*device);
    tried.push_back({{"step", rung.step}, {"result", "ok"}});
    return true;
  } catch (const Error& e) {
    tried.push_back({{"step", rung.step}, {"result", e.what()}});
    // Nobody there, or not for us: no reset will change that.
    if (e.code() == Errc::permission || e.code() == Errc::not_found || e.code() == Errc::busy) throw;
    return false;
  }
}

}  // namespace

ProbeResult probe_device(const std::string& uri, const CaptureRules& rules, std::chrono::milliseconds limit) {
  return ask("internal-probe", uri, limit, rules);
}
ProbeResult check_health(const std::string& uri, const CaptureRules& rules) {
  return ask("internal-health", uri, std::chrono::seconds(30), rules);
}
ProbeResult recover_device(const std::string& uri, bool may_reset, const CaptureRules& rules) {
  return ask(may_reset ? "internal-recover" : "internal-reopen", uri, std::chrono::seconds(60), rules);
}

int probe_main(const std::string& uri) {
  return answer([&] { return describe(*open_device(uri, {.bring_up = false})); });
}

int health_main(const std::string& uri) {
  return answer([&] { return health(*open_device(uri)); });
}

int reopen_main(const std::string& uri) {
  return answer([&]() -> json {
    json tried = json::array();
    if (!attempt(uri, open_again(), tried))
      throw Error({Errc::gone, "open again", uri, text_of(tried[0], "result"),
                   "a reset needs --destructive, on an inhabited device --i-know too", 0});
    return {{"tried", tried}};
  });
}

int recover_main(const std::string& uri) {
  return answer([&]() -> json {
    json tried = json::array();
    auto by = [](ResetKind kind) { return [kind](Device& d) { d.reset(kind, Deadline(5s)); }; };
    for (const Rung& rung : {open_again(), Rung{"function reset", by(ResetKind::function), false},
                             Rung{"firmware reset", by(ResetKind::firmware), false},
                             Rung{"device reset", by(ResetKind::device), false}})
      if (attempt(uri, rung, tried)) return {{"tried", tried}};
    return {
        {"error", {{"code", "device gone"}, {"text", "no reset brought the device back: " + tried.dump()}}}};
  });
}

}  // namespace kz
