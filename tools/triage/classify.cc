// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/triage/classify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

namespace kz::triage {
namespace {

using C = FaultClass;
using enum Confidence;

// Reset reasons, KZ_RR_* of the ABI (shim/uapi/kz_regs.h); journals are read on machines without the shim.
enum ResetReason {
  rr_power_on,
  rr_flr,
  rr_bus,
  rr_firmware,
  rr_watchdog,
  rr_thermal,
  rr_fw_crash,
  rr_hbm_ue,
  rr_power_loss
};
constexpr int throttle_power = 2;  // KZ_THROTTLE_POWER

// A fact, with fields that may be missing or of another type: journals are input.
class Fact {
 public:
  explicit Fact(const Evidence& e) : e_(e) {}
  bool is(std::string_view kind) const { return e_.kind == kind; }
  bool any(std::initializer_list<std::string_view> kinds) const {
    return std::ranges::any_of(kinds, [&](auto k) { return is(k); });
  }
  std::string text(const char* key) const {
    auto it = find(key);
    return it != nullptr && it->is_string() ? it->get<std::string>() : std::string();
  }
  bool says(const char* key, std::string_view value) const { return text(key) == value; }
  bool says(const char* key, std::initializer_list<std::string_view> values) const {
    return std::ranges::find(values, text(key)) != values.end();
  }
  bool flag(const char* key) const {
    auto it = find(key);
    return it != nullptr && it->is_boolean() && it->get<bool>();
  }
  int64_t number(const char* key, int64_t fallback = -1) const {
    auto it = find(key);
    return it != nullptr && it->is_number() ? static_cast<int64_t>(it->get<double>()) : fallback;
  }

 private:
  const nlohmann::json* find(const char* key) const {
    if (!e_.detail.is_object()) return nullptr;
    auto it = e_.detail.find(key);
    return it == e_.detail.end() ? nullptr : &*it;
  }
  const Evidence& e_;
};

bool reset_by(const Fact& f, std::initializer_list<int> reasons) {
  return f.is(ev::spontaneous_reset) && std::ranges::find(reasons, f.number("reason")) != reasons.end();
}
bool silent(const Fact& f) { return f.is(ev::no_completion); }

struct Rule {
  RuleText text;
  bool (*holds)(const Fact&);
};

// Order matters: see classify.h.
constexpr Rule rules[] = {
    // The device says itself why it went down.
    {{"reset.thermal", "the device reset itself for heat", C::thermal, high},
     [](const Fact& f) { return reset_by(f, {rr_thermal}); }},
    {{"reset.power", "the device came back from a loss of power", C::power, high},
     [](const Fact& f) { return reset_by(f, {rr_power_loss}); }},
    {{"limits.brownout", "the device saw its supply drop", C::power, high},
     [](const Fact& f) { return f.is(ev::limits) && f.says("what", "brownout"); }},
    {{"reset.memory", "the device reset itself for an uncorrectable memory error", C::hbm_ecc, high},
     [](const Fact& f) { return reset_by(f, {rr_hbm_ue}); }},
    {{"reset.firmware", "the firmware crashed or its watchdog ended it", C::firmware_hang, high},
     [](const Fact& f) {
       return reset_by(f, {rr_firmware, rr_watchdog, rr_fw_crash});
     }},
    {{"reset.power_on", "the device was powered up again while in use", C::power, medium},
     [](const Fact& f) { return reset_by(f, {rr_power_on}); }},

    // The device is gone: everything after that is a consequence.
    {{"lost.load", "the device left the bus under load", C::power, medium},
     [](const Fact& f) {
       return f.is(ev::lost) && f.says("how", {"all_ones", "closed"}) && f.flag("under_load");
     }},
    {{"lost.gone", "reads return all ones or the connection closed", C::hotplug_removal, medium},
     [](const Fact& f) {
       return f.is(ev::lost) && f.says("how", {"all_ones", "closed"});
     }},

    // Firmware that is dead or wrong explains every timeout.
    {{"telemetry.all_ones", "the telemetry block reads as all ones while the device answers",
      C::firmware_hang, high},
     [](const Fact& f) { return f.is(ev::telemetry) && f.says("what", "all_ones"); }},
    {{"telemetry.stopped", "the heartbeat or the telemetry stands still", C::firmware_hang, high},
     [](const Fact& f) {
       return f.is(ev::telemetry) && f.says("what", {"heartbeat_stopped", "frozen"});
     }},
    {{"silence.no_heartbeat", "no answer, and the heartbeat has stopped", C::firmware_hang, high},
     [](const Fact& f) { return silent(f) && f.says("heartbeat", "stopped"); }},
    {{"reset.endless", "a reset did not end", C::firmware_hang, high},
     [](const Fact& f) { return f.is(ev::reset) && f.says("what", "never_ready"); }},
    {{"silence.bad_input", "no answer after input that had to be refused", C::firmware_hang, high},
     [](const Fact& f) {
       return silent(f) && f.says("after", {"malformed", "zero_size", "oversize"});
     }},
    {{"silence.allocator", "the allocator does not answer", C::firmware_hang, high},
     [](const Fact& f) {
       return silent(f) && f.says("command", {"HBM_ALLOC", "HBM_FREE", "CTX_CREATE", "CTX_DESTROY"}) &&
              !f.flag("again_after_ring");
     }},
    {{"firmware.job_broken", "a firmware update broke running work", C::firmware_hang, high},
     [](const Fact& f) { return f.is(ev::firmware) && f.says("what", "job_broken"); }},
    {{"firmware.identity", "firmware version or image is not what it should be", C::firmware_mismatch, high},
     [](const Fact& f) { return f.is(ev::firmware); }},
    {{"telemetry.clock", "the device's clock runs backwards", C::firmware_hang, medium},
     [](const Fact& f) { return f.is(ev::telemetry) && f.says("what", "clock_backwards"); }},

    // Power and heat explain slowness.
    {{"limits.power", "power is beyond its cap, or throttles the device", C::power, high},
     [](const Fact& f) {
       return f.is(ev::limits) && (f.says("what", "over_cap") ||
                                   (f.says("what", "throttled") && f.number("reasons", 0) == throttle_power));
     }},
    {{"limits.heat", "temperature, fan or clock show a thermal problem", C::thermal, high},
     [](const Fact& f) { return f.is(ev::limits); }},

    // Bad cells explain wrong data and wrong results.
    {{"march.address", "two addresses are one, or one has no cell", C::hbm_ecc, high},
     [](const Fact& f) { return f.is(ev::address_fault); }},
    {{"march.cells", "cells read wrong in a march", C::hbm_ecc, high},
     [](const Fact& f) { return f.is(ev::march_mismatch); }},
    {{"ecc", "ECC errors, poison, or counters that do not count", C::hbm_ecc, high},
     [](const Fact& f) { return f.is(ev::ecc); }},
    {{"ecc.retired", "a retired page came back", C::hbm_ecc, high},
     [](const Fact& f) { return f.is(ev::retired_reused); }},
    {{"data.bad_cells", "data came back wrong and a march over its cells fails", C::hbm_ecc, high},
     [](const Fact& f) { return f.is(ev::data_mismatch) && f.says("cells", "bad"); }},

    // Who may reach what.
    {{"isolation", "one context reached another's memory", C::security_isolation, high},
     [](const Fact& f) { return f.is(ev::isolation); }},
    {{"reset.state_kept", "state survived a reset", C::security_isolation, high},
     [](const Fact& f) { return f.is(ev::reset) && f.says("what", "state_kept"); }},
    {{"not_cleared", "memory of a new owner was not zero", C::security_isolation, high},
     [](const Fact& f) { return f.is(ev::hbm_not_cleared); }},
    {{"driver.secrets", "the driver shows or lets do what it must not", C::security_isolation, high},
     [](const Fact& f) {
       return f.is(ev::driver) && f.says("what", {"padding", "rights", "not_cleared"});
     }},
    {{"dma.bus_master", "DMA went on with bus mastering off", C::queue_protocol, medium},
     [](const Fact& f) { return f.is(ev::dma_illegal) && f.says("how", "bus_master_off"); }},
    {{"dma.illegal", "DMA reached, or claimed to reach, memory it may not", C::iommu_dma, high},
     [](const Fact& f) { return f.is(ev::dma_illegal); }},
    {{"dma.address", "the device emitted another bus address than it was given", C::dma_corruption, high},
     [](const Fact& f) { return f.is(ev::dma_address); }},

    // Data that moved wrongly; a fence that only looked at stale data is one of them.
    {{"data.late", "data came after its completion, or again", C::dma_corruption, high},
     [](const Fact& f) {
       return f.any({ev::data_late, ev::data_rewritten});
     }},
    {{"data.guard", "bytes outside the target were written", C::dma_corruption, high},
     [](const Fact& f) { return f.is(ev::guard_overwritten); }},

    // The rules of the rings.
    {{"queue.rules", "interrupts, completions or order break the queue's rules", C::queue_protocol, high},
     [](const Fact& f) {
       return f.any(
           {ev::audit, ev::wrong_vector, ev::fence_passed, ev::starved, ev::abort_spread, ev::ring_overrun});
     }},
    {{"silence.doorbell", "a second ring of the doorbell brought the completion", C::queue_protocol, high},
     [](const Fact& f) { return silent(f) && f.flag("again_after_ring"); }},
    {{"silence.completion", "the device took the command and went on, but its completion never showed",
      C::queue_protocol, high},
     [](const Fact& f) {
       if (!silent(f)) return false;
       if (f.says("same_queue", "stuck") && f.says("counted", "yes"))
         return true;  // done, and told elsewhere
       return !f.says("others", "stuck") && (f.says("same_queue", "complete") || f.says("written", "yes"));
     }},
    {{"silence.engine", "a queue or the whole device stands still", C::firmware_hang, medium},
     [](const Fact& f) { return silent(f); }},

    // What is left speaks for itself.
    {{"data.wrong", "data came back wrong, the cells are good", C::dma_corruption, high},
     [](const Fact& f) { return f.is(ev::data_mismatch) && f.says("cells", "good"); }},
    {{"data.unexplained", "data came back wrong", C::dma_corruption, medium},
     [](const Fact& f) { return f.is(ev::data_mismatch); }},
    {{"status", "a command ended with another status than the ABI says", C::queue_protocol, medium},
     [](const Fact& f) { return f.is(ev::status_wrong); }},
    {{"compute", "a result is wrong while operands, cells and transfer are good", C::compute_sdc, high},
     [](const Fact& f) { return f.is(ev::compute_wrong); }},
    {{"leak", "device memory did not come back", C::resource_exhaustion, high},
     [](const Fact& f) { return f.is(ev::hbm_leak); }},
    {{"alloc", "allocation ended other than it should", C::resource_exhaustion, medium},
     [](const Fact& f) { return f.is(ev::alloc_wrong); }},
    {{"link.narrow", "the link runs narrower or slower than both ends can", C::link_signal, high},
     [](const Fact& f) { return f.is(ev::link); }},
    {{"link.errors", "the link or the device reported PCI Express errors", C::link_signal, medium},
     [](const Fact& f) { return f.is(ev::aer); }},
    {{"slow", "bandwidth or latency is worse than its reference, without heat", C::performance_regression,
      high},
     [](const Fact& f) { return f.is(ev::slow); }},
    {{"reset.config", "configuration was lost over a reset", C::driver_bug, medium},
     [](const Fact& f) { return f.is(ev::reset) && f.says("what", "config_lost"); }},
    {{"reset.record", "the record of a reset is wrong", C::device_spec_violation, medium},
     [](const Fact& f) { return f.is(ev::reset); }},
    {{"pci.rule", "a rule of the PCI specification is broken", C::device_spec_violation, high},
     [](const Fact& f) { return f.is(ev::pci_rule); }},
    {{"telemetry.implausible", "telemetry shows impossible values", C::firmware_hang, low},
     [](const Fact& f) { return f.is(ev::telemetry); }},
    {{"driver.sleep", "the driver does not bring back over a sleep what it had", C::power_management, high},
     [](const Fact& f) { return f.is(ev::driver) && f.says("what", "asleep"); }},
    {{"driver", "the driver or its module breaks a rule of the kernel or of its own interface", C::driver_bug,
      high},
     [](const Fact& f) { return f.is(ev::driver) && !is_driver_note(f.text("what")); }},
    {{"kernel.log", "the kernel log names the device or a bug", C::driver_bug, medium},
     [](const Fact& f) { return f.is(ev::kernel_log); }},
    {{"host.node", "a node, permission or limit of the host is in the way", C::permission_node_missing,
      medium},
     [](const Fact& f) {
       return f.is(ev::host_access) &&
              !f.says("what", {"fds_left", "locked_left", "pinned_left", "memory_climbs", "fds_climb"});
     }},
    {{"reset.other", "a reset that nobody asked for", C::driver_bug, low},
     [](const Fact& f) { return f.is(ev::spontaneous_reset); }},
    {{"lost.silent", "the device does not answer", C::firmware_hang, low},
     [](const Fact& f) { return f.is(ev::lost); }},
};

constexpr std::array<std::string_view, 21> class_names = {"link_signal",
                                                          "power",
                                                          "thermal",
                                                          "hbm_ecc",
                                                          "driver_bug",
                                                          "firmware_hang",
                                                          "firmware_mismatch",
                                                          "iommu_dma",
                                                          "resource_exhaustion",
                                                          "hotplug_removal",
                                                          "power_management",
                                                          "bios_bar",
                                                          "compute_sdc",
                                                          "dma_corruption",
                                                          "queue_protocol",
                                                          "security_isolation",
                                                          "performance_regression",
                                                          "permission_node_missing",
                                                          "abi_new_kernel",
                                                          "device_spec_violation",
                                                          "unknown"};

Diagnosis by_verdict(std::span<const TestVerdict> verdicts) {
  auto named = [](const TestVerdict& v, C cls, std::string_view says) {
    return Diagnosis{cls, low, std::nullopt, "verdict",
                     fmt::format("{} ended with {}: {}", v.test, to_string(v.verdict), says)};
  };
  for (const auto& v : verdicts) {
    if (v.verdict == Verdict::device_lost)
      return named(v, C::hotplug_removal, "the device was lost without a word");
    if (v.verdict == Verdict::timeout)
      return named(v, C::firmware_hang, "something stands still, nothing says what");
  }
  for (const auto& v : verdicts)
    if (v.verdict == Verdict::fail || v.verdict == Verdict::crash || v.verdict == Verdict::warn)
      return named(v, C::unknown, "no fact explains it");
  return {.reason = "nothing is wrong"};
}

}  // namespace

std::string_view to_string(FaultClass c) { return class_names.at(static_cast<size_t>(c)); }

std::optional<FaultClass> parse_class(std::string_view text) {
  auto it = std::ranges::find(class_names, text);
  if (it == class_names.end()) return std::nullopt;
  return static_cast<FaultClass>(it - class_names.begin());
}

std::string_view to_string(Confidence c) {
  return std::array<std::string_view, 3>{"low", "medium", "high"}.at(static_cast<size_t>(c));
}

Diagnosis classify(std::span<const Evidence> facts, std::span<const TestVerdict> verdicts) {
  for (const Rule& rule : rules)
    for (size_t i = 0; i < facts.size(); ++i) {
      if (!rule.holds(Fact(facts[i]))) continue;
      return {rule.text.cls, rule.text.confidence, i, std::string(rule.text.name),
              fmt::format("{} ({})", rule.text.means, facts[i].kind)};
    }
  return by_verdict(verdicts);
}

std::span<const RuleText> rule_texts() {
  static const std::vector<RuleText> texts = [] {
    std::vector<RuleText> t;
    for (const Rule& r : rules) t.push_back(r.text);
    return t;
  }();
  return texts;
}

bool is_driver_note(std::string_view what) {
  constexpr std::string_view notes[] = {"refused",     "bind_refused",     "unloaded_below_user",
                                        "probe_errno", "firmware_missing", "bar_lost"};
  return std::ranges::find(notes, what) != std::end(notes);
}

}  // namespace kz::triage
