// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/snapshot.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "shim/pci/health.h"
#include "shim/pci/rules.h"
#include "shim/uapi/kz_telemetry.h"
#include "tools/journal/evidence.h"

namespace kz::test {
namespace {

template <class T>
void put(nlohmann::json& out, const char* key, const std::optional<T>& value) {
  if (value) out[key] = *value;
}

class Judge {
 public:
  Judge(const Snapshot& b, const Snapshot& a, const Limits& limits, const Expected& expected,
        const std::string& test)
      : b_(b.telemetry),
        a_(a.telemetry),
        before_(b),
        after_(a),
        limits_(limits),
        expected_(expected),
        test_(test) {}

  std::vector<Finding> run() {
    if (a_.all_ones) {
      add(true, "telemetry reads as all ones", ev::telemetry, {{"what", "all_ones"}, {"field", "block"}});
      return std::move(found_);
    }
    if (!b_.all_ones) {
      if (!expected_.reset) resets();
      if (!expected_.ecc) ecc();
      if (!expected_.hbm) hbm();
      heat();
    }
    link();
    aer();
    process();
    return std::move(found_);
  }

 private:
  void add(bool fails, std::string text, std::string_view kind, nlohmann::json detail) {
    found_.push_back({fails, std::move(text), std::string(kind), std::move(detail)});
  }

  void resets() {
    if (!b_.reset_count || !a_.reset_count || *b_.reset_count == *a_.reset_count) return;
    uint32_t reason = a_.reset_reason.value_or(0);
    add(true,
        fmt::format("the device was reset {} time(s) that nobody asked for, last reason {}",
                    *a_.reset_count - *b_.reset_count, reason),
        ev::spontaneous_reset,
        {{"reason", reason}, {"during", test_}, {"count", *a_.reset_count - *b_.reset_count}});
  }

  void ecc() {
    auto compare = [&](const std::vector<uint32_t>& before, const std::vector<uint32_t>& after, bool ue) {
      for (size_t ch = 0; ch < std::min(before.size(), after.size()); ++ch) {
        if (after[ch] == before[ch]) continue;
        const char* what = ue ? "ue" : "ce";
        add(ue,
            fmt::format("{} {}correctable ECC error(s) on channel {}", after[ch] - before[ch], ue ? "un" : "",
                        ch),
            ev::ecc, {{"what", what}, {"channel", ch}, {"delta", after[ch] - before[ch]}});
      }
    };
    compare(b_.ecc_ce, a_.ecc_ce, false);
    compare(b_.ecc_ue, a_.ecc_ue, true);
  }

  void hbm() {
    if (b_.hbm_free && a_.hbm_free) {
      uint64_t retired =
          a_.pages_retired.value_or(0) - std::min(b_.pages_retired.value_or(0), a_.pages_retired.value_or(0));
      uint64_t want = *b_.hbm_free - std::min(*b_.hbm_free, retired * limits_.hbm_page);
      if (*a_.hbm_free < want)
        add(true, fmt::format("{} bytes of HBM did not come back", want - *a_.hbm_free), ev::hbm_leak,
            {{"bytes", want - *a_.hbm_free}, {"cycles", 1}, {"slope_bytes_per_cycle", want - *a_.hbm_free}});
    }
    if (b_.contexts && a_.contexts && *a_.contexts > *b_.contexts)
      add(true, fmt::format("{} context(s) were left on the device", *a_.contexts - *b_.contexts),
          ev::hbm_leak,
          {{"bytes", 0},
           {"cycles", 1},
           {"slope_bytes_per_cycle", 0},
           {"contexts", *a_.contexts - *b_.contexts}});
  }

  void heat() {
    auto crossed = [](const std::optional<double>& was, const std::optional<double>& is,
                      const std::optional<double>& limit, double slack) {
      return is && limit && *is > *limit * slack && !(was && *was > *limit * slack);
    };
    for (auto [was, is, name] :
         {std::tuple{b_.core_celsius, a_.core_celsius, "core"}, {b_.hbm_celsius, a_.hbm_celsius, "hbm"}})
      if (crossed(was, is, a_.critical_celsius, 1.0))
        add(true,
            fmt::format("{} temperature {:.1f} C is over the critical {:.1f} C", name, *is,
                        *a_.critical_celsius),
            ev::limits,
            {{"what", "over_limit"},
             {"value", *is},
             {"limit", *a_.critical_celsius},
             {"under_load", true},
             {"celsius", *is}});
    if (crossed(b_.power_watts, a_.power_watts, a_.power_cap_watts, 1.005))
      add(true,
          fmt::format("power {:.1f} W is over its cap of {:.1f} W", *a_.power_watts, *a_.power_cap_watts),
          ev::limits,
          {{"what", "over_cap"},
           {"value", *a_.power_watts},
           {"limit", *a_.power_cap_watts},
           {"under_load", true},
           {"celsius", a_.core_celsius.value_or(0)}});
    if (b_.fan_rpm.value_or(0) > 0 && a_.fan_rpm && *a_.fan_rpm == 0)
      add(true, "the fan stopped", ev::limits,
          {{"what", "fan_stopped"},
           {"value", 0},
           {"limit", *b_.fan_rpm},
           {"under_load", true},
           {"celsius", a_.core_celsius.value_or(0)}});
    throttling();
  }

  void throttling() {
    uint32_t fresh = a_.throttle.value_or(0) & ~b_.throttle.value_or(0);
    if (!fresh) return;
    bool brownout = fresh & KZ_THROTTLE_BROWNOUT;
    add(brownout, fmt::format("the device began to throttle (reasons {:#x})", fresh), ev::limits,
        {{"what", brownout ? "brownout" : "throttled"},
         {"value", a_.clock_mhz.value_or(0)},
         {"limit", a_.clock_max_mhz.value_or(0)},
         {"under_load", true},
         {"celsius", a_.core_celsius.value_or(0)},
         {"reasons", fresh}});
  }

  void link() {
    if (!before_.link || !after_.link) return;
    auto shortfall = judge_link(*after_.link, *before_.link, {}, after_.class_code);
    if (!shortfall) return;
    std::string text = fmt::format("the link ran at {} before and at {} after", to_string(*before_.link),
                                   to_string(*after_.link));
    if (shortfall->narrow)
      add(true, text, ev::link,
          {{"what", "narrow"},
           {"got", fmt::format("x{}", after_.link->width)},
           {"max", fmt::format("x{}", before_.link->width)}});
    if (shortfall->slow)
      add(false, text, ev::link,
          {{"what", "slow"},
           {"got", fmt::format("{:g} GT/s", after_.link->gts)},
           {"max", fmt::format("{:g} GT/s", before_.link->gts)}});
  }

  // What the kernel counts it also clears from the registers; where it does not look they tell.
  void aer() {
    auto compare = [&](const char* severity, auto total, auto bits) {
      uint64_t was = (before_.aer_totals.*total).value_or(0), is = (after_.aer_totals.*total).value_or(0);
      uint64_t fresh = is > was ? is - was : 0;
      uint32_t set = 0;
      if (before_.aer_bits && after_.aer_bits) set = (*after_.aer_bits).*bits & ~((*before_.aer_bits).*bits);
      if (fresh == 0) fresh = static_cast<uint64_t>(std::popcount(set));
      if (fresh == 0) return;
      add(severity == std::string_view("fatal"), fmt::format("{} new {} AER error(s)", fresh, severity),
          ev::aer, {{"severity", severity}, {"count", fresh}, {"status", set}});
    };
    compare("correctable", &AerTotals::correctable, &AerBits::correctable);
    compare("nonfatal", &AerTotals::nonfatal, &AerBits::nonfatal);
    compare("fatal", &AerTotals::fatal, &AerBits::fatal);
  }

  void process() {
    if (after_.fds > before_.fds)
      add(false, fmt::format("{} file descriptor(s) were left open", after_.fds - before_.fds),
          ev::host_access,
          {{"what", "fds_left"}, {"path", "/proc/self/fd"}, {"count", after_.fds - before_.fds}});
    if (after_.locked_kib > before_.locked_kib)
      add(false, fmt::format("{} KiB stayed locked", after_.locked_kib - before_.locked_kib), ev::host_access,
          {{"what", "locked_left"},
           {"path", "/proc/self/status"},
           {"kib", after_.locked_kib - before_.locked_kib}});
    if (after_.pinned_kib > before_.pinned_kib)
      add(false, fmt::format("{} KiB stayed pinned", after_.pinned_kib - before_.pinned_kib), ev::host_access,
          {{"what", "pinned_left"},
           {"path", "/proc/self/status"},
           {"kib", after_.pinned_kib - before_.pinned_kib}});
  }

  const Telemetry& b_;
  const Telemetry& a_;
  const Snapshot& before_;
  const Snapshot& after_;
  const Limits& limits_;
  const Expected& expected_;
  const std::string& test_;
  std::vector<Finding> found_;
};

std::optional<AerBits> read_aer(ConfigSpace& config, const CapabilityWalk& walk) {
  auto cap = find_capability(walk, PCI_EXT_CAP_ID_ERR, true);
  if (!cap || cap->offset + PCI_ERR_COR_MASK + 4u > config.size()) return std::nullopt;
  auto reg = [&](uint32_t offset) { return config.read32(cap->offset + offset); };
  // As in check_aer_status(): these two come from looking for functions that are not there.
  uint32_t bad = reg(PCI_ERR_UNCOR_STATUS) & ~reg(PCI_ERR_UNCOR_MASK) & ~uint32_t{PCI_ERR_UNC_UNSUP};
  uint32_t corrected = reg(PCI_ERR_COR_STATUS) & ~reg(PCI_ERR_COR_MASK) & ~uint32_t{PCI_ERR_COR_ADV_NFAT};
  uint32_t fatal = reg(PCI_ERR_UNCOR_SEVER);
  return AerBits{.correctable = corrected, .nonfatal = bad & ~fatal, .fatal = bad & fatal};
}

void look_at_function(Device& device, Snapshot& s) {
  const auto& caps = device.capabilities();
  s.class_code = device.identity().class_code;
  if (caps.has(Cap::config_read)) {
    auto& config = device.config();
    const CapabilityWalk walk = walk_capabilities(config);
    if (auto link = read_link_registers(config, walk)) s.link = link->now;
    s.aer_bits = read_aer(config, walk);
  }
  if (!caps.has(Cap::sysfs) || !device.identity().bdf) return;
  const PciInfo info = read_pci_info(*device.identity().bdf, {}, false);
  s.aer_totals = info.aer;
  if (!s.link) s.link = info.link_now;
}

nlohmann::json to_json(const AerTotals& t) {
  nlohmann::json out = nlohmann::json::object();
  put(out, "correctable", t.correctable);
  put(out, "nonfatal", t.nonfatal);
  put(out, "fatal", t.fatal);
  return out;
}

}  // namespace

uint64_t process_kib(std::string_view field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (!line.starts_with(field) || line.size() <= field.size() || line[field.size()] != ':') continue;
    size_t at = line.find_first_of("0123456789");
    uint64_t kib = 0;
    if (at != std::string::npos) std::from_chars(line.data() + at, line.data() + line.size(), kib);
    return kib;
  }
  return 0;
}

uint64_t open_fds() {
  std::error_code ec;
  uint64_t n = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end; it.increment(ec))
    ++n;
  return n > 0 ? n - 1 : 0;  // one of them is the listing itself
}

Snapshot take_snapshot(Device& device) {
  Snapshot s;
  const auto& caps = device.capabilities();
  if (caps.has(Cap::telemetry)) s.telemetry = device.telemetry();
  if (caps.has(Cap::interrupts)) s.interrupts = device.interrupt_counts();
  look_at_function(device, s);
  s.fds = open_fds();
  s.locked_kib = process_kib("VmLck");
  s.pinned_kib = process_kib("VmPin");
  s.resident_kib = process_kib("VmRSS");
  return s;
}

nlohmann::json to_json(const Telemetry& t) {
  nlohmann::json out = nlohmann::json::object();
  put(out, "core_celsius", t.core_celsius);
  put(out, "hbm_celsius", t.hbm_celsius);
  put(out, "limit_celsius", t.limit_celsius);
  put(out, "critical_celsius", t.critical_celsius);
  put(out, "power_watts", t.power_watts);
  put(out, "power_cap_watts", t.power_cap_watts);
  put(out, "clock_mhz", t.clock_mhz);
  put(out, "clock_max_mhz", t.clock_max_mhz);
  put(out, "fan_rpm", t.fan_rpm);
  put(out, "throttle", t.throttle);
  put(out, "throttle_ms", t.throttle_ms);
  put(out, "heartbeat", t.heartbeat);
  put(out, "firmware_version", t.firmware_version);
  put(out, "reset_count", t.reset_count);
  put(out, "reset_reason", t.reset_reason);
  put(out, "hbm_bytes", t.hbm_bytes);
  put(out, "hbm_free", t.hbm_free);
  put(out, "contexts", t.contexts);
  put(out, "pages_retired", t.pages_retired);
  put(out, "pages_retire_max", t.pages_retire_max);
  put(out, "device_ns", t.device_ns);
  put(out, "commands", t.commands);
  put(out, "dma_bytes", t.dma_bytes);
  if (!t.ecc_ce.empty()) out["ecc_ce"] = t.ecc_ce;
  if (!t.ecc_ue.empty()) out["ecc_ue"] = t.ecc_ue;
  if (t.all_ones) out["all_ones"] = true;
  return out;
}

nlohmann::json to_json(const Snapshot& s) {
  nlohmann::json out = {
      {"telemetry", to_json(s.telemetry)}, {"interrupts", s.interrupts}, {"fds", s.fds},
      {"locked_kib", s.locked_kib},        {"pinned_kib", s.pinned_kib}, {"resident_kib", s.resident_kib}};
  if (s.link) out["link"] = {{"gts", s.link->gts}, {"width", s.link->width}};
  if (s.aer_bits)
    out["aer_status"] = {{"correctable", s.aer_bits->correctable},
                         {"nonfatal", s.aer_bits->nonfatal},
                         {"fatal", s.aer_bits->fatal}};
  if (s.aer_totals.known()) out["aer_totals"] = to_json(s.aer_totals);
  return out;
}

std::vector<Finding> judge_difference(const Snapshot& before, const Snapshot& after, const Limits& limits,
                                      const Expected& expected, const std::string& test) {
  return Judge(before, after, limits, expected, test).run();
}

}  // namespace kz::test
