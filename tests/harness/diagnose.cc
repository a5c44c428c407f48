// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "shim/uapi/kz_regs.h"
#include "shim/base/host_load.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

std::optional<uint32_t> heartbeat(Device& device) {
  const auto& caps = device.capabilities();
  if (!caps.has(Cap::heartbeat)) return std::nullopt;
  if (caps.has(Cap::registers)) return device.read_register(KZ_REG_HEARTBEAT);
  return device.telemetry().heartbeat;
}

const char* how_lost(Device& device) {
  try {
    const uint32_t magic = device.read_register(KZ_REG_MAGIC);
    return magic == ~0u ? "all_ones" : magic == 0 ? "zeroes" : "answers_again";
  } catch (const Error& e) {
    return e.code() == Errc::timeout                           ? "no_reply"
           : e.info().detail.find("ones") != std::string::npos ? "all_ones"
                                                               : "closed";
  }
}

uint64_t run_march(QueueGuard& queue, HbmAddr addr, uint64_t len, uint64_t pattern) {
  using enum MarchOp;
  struct Element {
    bool down;
    std::vector<MarchOp> ops;
  };
  uint64_t wrong = 0;
  for (const auto& [down, ops] :
       {Element{false, {w0}}, Element{false, {r0, w1}}, Element{false, {r1, w0}}, Element{true, {r0, w1}},
        Element{true, {r1, w0}}, Element{false, {r0, r0}}}) {
    cmd::March march{.addr = addr, .len = len, .ops = ops, .down = down, .pattern = pattern};
    const Completion done = run(queue, {march}, 2s);
    wrong += done.status == Status::ok ? done.result : 1;
  }
  return wrong;
}

// The same bytes looked at three times more through the last hop.
std::string reread_three(const Transfer& t, const std::vector<std::byte>& seen) {
  if (!t.reread) return "unknown";
  unsigned good = 0, same = 0;
  for (int i = 0; i < 3; ++i) {
    t.reread();
    good += std::equal(t.got.begin(), t.got.end(), t.want.begin());
    same += std::equal(t.got.begin(), t.got.end(), seen.begin());
  }
  return good == 3 ? "good" : same == 3 ? "same" : "differs";
}

std::string moved_again(const Transfer& t) {
  if (!t.again) return "unknown";
  t.again();
  return std::equal(t.got.begin(), t.got.end(), t.want.begin()) ? "good" : "bad";
}

// The march over the cells behind the wrong bytes, at most 1 MiB of them.
std::string cells_behind(const Transfer& t, const Difference& d) {
  if (!t.queue || t.cells_len == 0) return "unknown";
  const uint64_t whole = (t.cells.value + t.cells_len) & ~uint64_t{7};
  const uint64_t first = t.cells.value + t.cells_skip + d.first;
  const uint64_t begin = std::max(first & ~uint64_t{63}, align_up(t.cells.value, 8));
  const uint64_t length = std::min(d.last - d.first + 1, uint64_t{1} << 20);
  const uint64_t end = std::min(align_up(first + length, 64), whole);
  if (end <= begin) return "unknown";
  return march_cells(*t.queue, {begin}, end - begin);
}

// Data that comes after its completion: wait for it without asking the device for anything.
std::optional<int64_t> arrives_late(const Transfer& t) {
  const auto start = Clock::now();
  Deadline deadline(50ms);
  do {
    if (std::memcmp(t.got.data(), t.want.data(), t.want.size()) == 0) return (Clock::now() - start) / 1ns;
    std::this_thread::yield();
  } while (!deadline.passed());
  return std::nullopt;
}

std::string guess_by(const std::function<std::string()>& step) {
  try {
    return step();
  } catch (const Error&) {
    return "unknown";  // the step itself could not be done; what is known already still counts
  }
}

}  // namespace

std::string heartbeat_state(Device& device, std::chrono::nanoseconds budget) {
  try {
    const auto first = heartbeat(device);
    if (!first || *first == ~0u) return "unknown";  // it has none, or nobody answers
    auto now = first;
    if (!seen_within(budget, [&] { return (now = heartbeat(device)) != first; })) return "stopped";
    return now == ~0u ? "unknown" : "alive";
  } catch (const Error&) {
    return "unknown";
  }
}

std::string others_state(Device& device) {
  try {
    auto queue = device.root_context().open_queue({.order = 2});
    try {
      run(*queue, {cmd::Nop{}}, 2s);  // longer than a driver takes to find a completion without its interrupt
      return "complete";
    } catch (const Error&) {
      return "stuck";
    }
  } catch (const Error&) {
    return "unknown";
  }
}

std::optional<uint32_t> fatal_code(Device& device) {
  try {
    if (!device.capabilities().has(Cap::registers)) return std::nullopt;
    const uint32_t status = device.read_register(KZ_REG_STATUS);
    if (status == ~0u || !(status & KZ_STATUS_FATAL)) return std::nullopt;
    return KZ_STATUS_CODE(status);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void report_stall(Device& device, const Stall& stall) {
  const auto fatal = fatal_code(device);
  nlohmann::json detail = {{"command", stall.command},       {"budget_ms", stall.budget.count()},
                           {"others", others_state(device)}, {"heartbeat", heartbeat_state(device)},
                           {"after", stall.after},           {"again_after_ring", stall.again_after_ring},
                           {"same_queue", stall.same_queue}, {"written", stall.written},
                           {"counted", stall.counted},       {"queue", stall.queue}};
  if (stall.fetched_known) detail["fetched"] = stall.fetched;
  if (fatal) detail["fatal"] = *fatal;
  evidence(ev::no_completion, detail);
  if (fatal)
    evidence(ev::spontaneous_reset,
             {{"reason", *fatal}, {"during", stall.command + " (" + stall.after + ")"}});
}

std::string report_status(const std::string& command, Status want, Status got) {
  if (got == Status::poison)
    evidence(ev::ecc, {{"what", "poison"}, {"channel", -1}, {"delta", 1}, {"command", command}});
  else
    evidence(ev::status_wrong,
             {{"command", command}, {"expected", to_string(want)}, {"got", to_string(got)}});
  return fmt::format("{} ended with {}, expected {}", command, to_string(got), to_string(want));
}

namespace {
// What the device says of why it was away: KZ_RR_*.
void report_cause(std::optional<uint32_t> reason, bool under_load) {
  if (reason && *reason != KZ_RR_POWER_ON && *reason != KZ_RR_FLR)
    evidence(ev::spontaneous_reset, {{"reason", *reason}, {"during", under_load ? "load" : "idle"}});
  if (reason == KZ_RR_POWER_LOSS)
    evidence(ev::limits,
             {{"what", "brownout"}, {"value", 0}, {"limit", 0}, {"under_load", under_load}, {"celsius", 0}});
}
}  // namespace

bool report_lost(Device& device, bool under_load, std::chrono::nanoseconds budget) {
  nlohmann::json detail = {{"how", how_lost(device)}, {"under_load", under_load}};
  // What a device says as soon as it answers is the cause. A reset would take it along, and one that is
  // started while nothing answers may be waited for in vain.
  for (Deadline deadline(budget); std::string_view(how_lost(device)) == "all_ones" && !deadline.passed();)
    std::this_thread::sleep_for(1ms);
  bool back = false;
  std::optional<uint32_t> reason;
  for (Deadline deadline(budget); !back && !deadline.passed(); std::this_thread::yield()) {
    if (!reason) reason = fatal_code(device);
    try {
      device.recover(deadline);
      back = true;
      if (!reason && device.capabilities().has(Cap::telemetry)) reason = device.telemetry().reset_reason;
    } catch (const Error& e) {
      // A link that is down comes back, and so does one that went down during the reset.
      if (e.code() != Errc::gone && e.code() != Errc::timeout) break;
    }
  }
  detail["back"] = back;
  evidence(ev::lost, detail);
  report_cause(reason, under_load);
  return back;
}

void report_absent(const Error& e, const std::function<Device&()>& open) {
  const bool ones = e.info().detail.find("ones") != std::string::npos;
  std::optional<uint32_t> reason;
  bool back = false;
  for (Deadline deadline(3s); ones && !back && !deadline.passed(); std::this_thread::sleep_for(20ms)) {
    try {
      Device& device = open();
      back = true;
      reason = fatal_code(device);
      if (!reason && device.capabilities().has(Cap::telemetry)) reason = device.telemetry().reset_reason;
    } catch (const Error&) {
      // still away
    }
  }
  evidence(ev::lost, {{"how", ones ? "all_ones" : "no_reply"}, {"under_load", false}, {"back", back}});
  report_cause(reason, false);
}

std::string march_cells(QueueGuard& queue, HbmAddr addr, uint64_t len) {
  addr.value = align_up(addr.value, 8);
  len &= ~uint64_t{7};
  if (len == 0) return "unknown";
  return guess_by([&] {
    uint64_t wrong = 0;
    for (uint64_t pattern : {uint64_t{0}, uint64_t{0xaaaaaaaaaaaaaaaa}, uint64_t{0x3333333333333333}})
      wrong += run_march(queue, addr, len, pattern);
    return wrong ? "bad" : "good";
  });
}

std::string check_transfer(const Transfer& t) {
  if (t.want.empty() || std::memcmp(t.want.data(), t.got.data(), t.want.size()) == 0) return {};
  const std::vector<std::byte> seen(t.got.begin(), t.got.end());
  const Difference d = compare_bytes(t.want, seen, t.before, t.chunk);
  if (auto after_ns = arrives_late(t)) {
    evidence(ev::data_late,
             {{"after_ns", *after_ns}, {"path", t.path}, {"bytes", d.bytes}, {"first", d.first}});
    return fmt::format("{}: data came {} us after its completion", t.path, *after_ns / 1000);
  }
  nlohmann::json detail = {{"path", t.path}, {"first", d.first},        {"last", d.last},  {"bytes", d.bytes},
                           {"bits", d.bits}, {"length", t.want.size()}, {"shape", d.shape}};
  if (d.shift) detail["shift"] = d.shift;
  detail["reread"] = guess_by([&] { return reread_three(t, seen); });
  detail["moved_again"] = guess_by([&] { return moved_again(t); });
  detail["cells"] = guess_by([&] { return cells_behind(t, d); });
  evidence(ev::data_mismatch, detail);
  return fmt::format("{}: {} of {} bytes differ, first at {:#x} ({}); reread {}, moved again {}, cells {}",
                     t.path, d.bytes, t.want.size(), d.first, d.shape, detail["reread"].get<std::string>(),
                     detail["moved_again"].get<std::string>(), detail["cells"].get<std::string>());
}

std::string check_guard(std::span<const std::byte> guard, std::byte fill, const std::string& where,
                        const std::string& path) {
  const auto wrong = std::count_if(guard.begin(), guard.end(), [&](std::byte b) { return b != fill; });
  if (wrong == 0) return {};
  const auto first =
      std::find_if(guard.begin(), guard.end(), [&](std::byte b) { return b != fill; }) - guard.begin();
  evidence(ev::guard_overwritten, {{"where", where}, {"bytes", wrong}, {"path", path}, {"first", first}});
  return fmt::format("{}: {} bytes {} the target were overwritten, first {} bytes into the guard", path,
                     wrong, where, first);
}

}  // namespace kz::test
