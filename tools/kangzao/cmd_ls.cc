// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "shim/pci/config_live.h"
#include "shim/pci/sysfs.h"
#include "tools/kangzao/commands.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using nlohmann::json;

struct Row {
  PciFunction f;
  PciNames names;
  std::vector<std::string> health;  // empty: ok
};

std::vector<std::string> look_at(const PciFunction& f) {
  std::vector<std::string> out;
  try {
    if (open_live_config(f.bdf)->read32(0) == 0xffffffff && !f.virtual_function) return {"does not answer: config space reads all ones"};
  } catch (const Error& e) {
    return {e.what()};
  }
  if (link_degraded(f))
    out.push_back(fmt::format("link degraded: {} x{} of {} x{}", f.link_speed, f.link_width.value_or(0), f.link_speed_max, f.link_width_max.value_or(0)));
  for (auto& [kind, n] : f.aer)
    if (n > 0) out.push_back(fmt::format("{} {} AER errors", n, kind));
  if (f.driver.empty() && is_accelerator(f)) out.push_back("no driver is bound");
  return out;
}

// "1af4:1041", "1af4:" or a BDF
bool named(const PciFunction& f, const std::string& what) {
  if (what.find('.') != std::string::npos) return f.bdf == parse_bdf(what);
  std::string ids = fmt::format("{:04x}:{:04x}", f.vendor, f.device);
  return ids == what || (what.ends_with(':') && ids.starts_with(what));
}

std::vector<Row> gather(const std::vector<std::string>& names, bool all) {
  auto functions = all_functions();
  for (auto& n : names)
    if (std::none_of(functions.begin(), functions.end(), [&](auto& f) { return named(f, n); }))
      throw Error({Errc::usage, "list", "'" + n + "'", "no such device on this machine", "see 'kangzao ls --all'", 0});
  std::vector<Row> rows;
  for (auto& f : functions) {
    bool wanted = names.empty() ? all || is_accelerator(f) : std::any_of(names.begin(), names.end(), [&](auto& n) { return named(f, n); });
    if (wanted) rows.push_back({f, pci_names(f.vendor, f.device, f.class_code), look_at(f)});
  }
  return rows;
}

std::string link_text(const PciFunction& f) {
  if (!f.link_width && f.link_speed.empty()) return "-";
  auto one = [](const std::string& speed, std::optional<unsigned> width) {
    std::string gt = speed.substr(0, speed.find(' '));
    return fmt::format("{}x{}", gt.empty() ? "?" : gt, width ? std::to_string(*width) : "?");
  };
  return one(f.link_speed, f.link_width) + "/" + one(f.link_speed_max, f.link_width_max);
}

json to_json(const Row& r) {
  const PciFunction& f = r.f;
  json nodes = json::array();
  for (auto& n : f.nodes) nodes.push_back({{"path", n.path}, {"subsystem", n.subsystem}});
  auto maybe = [](auto& o) { return o ? json(*o) : json(nullptr); };
  return {{"bdf", to_string(f.bdf)}, {"vendor", fmt::format("{:04x}", f.vendor)}, {"device", fmt::format("{:04x}", f.device)},
          {"subsystem_vendor", fmt::format("{:04x}", f.subsystem_vendor)}, {"subsystem", fmt::format("{:04x}", f.subsystem)},
          {"class", fmt::format("{:06x}", f.class_code)}, {"class_name", r.names.class_name}, {"vendor_name", r.names.vendor}, {"device_name", r.names.device},
          {"accelerator", is_accelerator(f)}, {"driver", f.driver}, {"nodes", nodes}, {"numa_node", maybe(f.numa_node)}, {"iommu_group", maybe(f.iommu_group)},
          {"link", {{"speed", f.link_speed}, {"width", maybe(f.link_width)}, {"max_speed", f.link_speed_max}, {"max_width", maybe(f.link_width_max)}}},
          {"aer", f.aer}, {"power_state", f.power_state}, {"healthy", r.health.empty()}, {"health", r.health}};
}

std::string table(const std::vector<Row>& rows) {
  std::string out = fmt::format("{:<13}{:<11}{:<16}{:<20}{:>5}{:>6}  {:<14} {}\n", "BDF", "ids", "driver", "link now/max", "numa", "iommu", "AER c/nf/f", "device");
  for (const Row& r : rows) {
    const PciFunction& f = r.f;
    auto count = [&](const char* kind) { return f.aer.contains(kind) ? std::to_string(f.aer.at(kind)) : std::string("-"); };
    std::vector<std::string> nodes;
    for (auto& n : f.nodes) nodes.push_back(n.path);
    out += fmt::format("{:<13}{:04x}:{:04x}  {:<16}{:<20}{:>5}{:>6}  {:<14} {} ({})\n", to_string(f.bdf), f.vendor, f.device, f.driver.empty() ? "-" : f.driver, link_text(f),
                       f.numa_node ? std::to_string(*f.numa_node) : "-", f.iommu_group ? std::to_string(*f.iommu_group) : "-",
                       fmt::format("{}/{}/{}", count("correctable"), count("nonfatal"), count("fatal")), printable(r.names.vendor + " " + r.names.device), printable(r.names.class_name));
    if (!nodes.empty()) out += fmt::format("{:13}nodes {}\n", "", fmt::join(nodes, " "));
    out += fmt::format("{:13}{}\n", "", r.health.empty() ? "ok" : printable(fmt::format("{}", fmt::join(r.health, "; "))));
  }
  return out;
}

}  // namespace

void add_ls(CLI::App& app, int& exit_status) {
  auto* sub = app.add_subcommand("ls", "accelerators of this machine: link, driver, nodes, AER counts, health");
  sub->footer("Examples:\n  kangzao ls\n  kangzao ls --all\n  kangzao ls 0000:01:00.0 --json\n  kangzao ls 10de:");
  struct Args {
    std::vector<std::string> names;
    bool all = false, json = false;
  };
  auto a = std::make_shared<Args>();
  sub->add_option("device", a->names, "BDF, vendor:device or vendor:");
  sub->add_flag("--all", a->all, "every PCI device");
  sub->add_flag("--json", a->json, "one JSON document");
  sub->callback([a, &exit_status] {
    auto rows = gather(a->names, a->all);
    if (a->json) {
      json out = {{"schema", 1}, {"devices", json::array()}};
      for (auto& r : rows) out["devices"].push_back(to_json(r));
      write_output(out.dump(1, ' ', false, json::error_handler_t::replace) + "\n", "");
    } else if (rows.empty()) {
      write_output("no accelerator on this machine; 'kangzao ls --all' shows every PCI device\n", "");
    } else {
      write_output(table(rows), "");
    }
    exit_status = 0;
  });
}

}  // namespace kz
