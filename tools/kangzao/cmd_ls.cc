// SPDX-License-Identifier: GPL-2.0-or-later
// kangzao ls: what PCI functions this machine has, and whether they look well.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "shim/pci/discovery.h"
#include "shim/pci/health.h"
#include "tools/kangzao/commands.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using nlohmann::json;

struct LsOptions {
  std::vector<std::string> names;
  bool all = false, json = false;
};

struct Row {
  FoundFunction f;
  PciHealth health;
};

std::vector<Row> gather(const LsOptions& options) {
  std::vector<PciSelector> selectors;
  for (const auto& name : options.names) selectors.push_back(parse_selector(name));
  auto found = discover_pci();
  for (size_t i = 0; i < selectors.size(); ++i) {
    if (std::any_of(found.begin(), found.end(), [&](const auto& f) { return selectors[i].matches(f.info); }))
      continue;
    std::string near = selectors[i].bdf ? "nearest: " + nearest_functions(*selectors[i].bdf) + "; " : "";
    throw Error({Errc::usage, "list", "'" + options.names[i] + "'", "this machine has no such PCI function",
                 near + "kangzao ls --all lists every one", 0});
  }
  std::vector<Row> rows;
  for (auto& f : found) {
    bool named =
        std::any_of(selectors.begin(), selectors.end(), [&](const auto& s) { return s.matches(f.info); });
    if (!named && !options.all && !(selectors.empty() && f.accelerator)) continue;
    PciHealth health = judge_health(f.info);
    rows.push_back({std::move(f), std::move(health)});
  }
  return rows;
}

template <class T>
json maybe(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json link_json(const std::optional<PciLink>& link) {
  return link ? json{{"gts", link->gts}, {"width", link->width}} : json(nullptr);
}

std::string hex4(uint16_t value) { return fmt::format("{:04x}", value); }

json to_json(const Row& row) {
  const PciInfo& i = row.f.info;
  json nodes = json::array(), problems = json::array();
  for (const auto& n : i.nodes) {
    json node = {{"path", n.path}, {"subsystem", n.subsystem}, {"present", n.present || !n.is_node}};
    if (n.present) node.update({{"mode", fmt::format("{:04o}", n.mode)}, {"uid", n.uid}, {"gid", n.gid}});
    nodes.push_back(node);
  }
  for (const auto& p : row.health.problems)
    problems.push_back({{"state", to_string(p.state)}, {"reason", p.reason}});
  return {{"bdf", to_string(i.bdf)},
          {"vendor", hex4(i.vendor)},
          {"device", hex4(i.device)},
          {"subsystem_vendor", i.subsystem_vendor ? json(hex4(*i.subsystem_vendor)) : json(nullptr)},
          {"subsystem", i.subsystem ? json(hex4(*i.subsystem)) : json(nullptr)},
          {"class", fmt::format("{:06x}", i.class_code)},
          {"revision", fmt::format("{:02x}", i.revision)},
          {"vendor_name", row.f.vendor_name},
          {"device_name", row.f.device_name},
          {"class_name", row.f.class_name},
          {"accelerator", row.f.accelerator.has_value()},
          {"accelerator_reason", maybe(row.f.accelerator)},
          {"driver", i.driver.empty() ? json(nullptr) : json(i.driver)},
          {"nodes", nodes},
          {"link",
           {{"now", link_json(i.link_now)},
            {"max", link_json(i.link_max)},
            {"upstream_max", link_json(i.upstream_link_max)}}},
          {"numa_node", maybe(i.numa_node)},
          {"iommu_group", maybe(i.iommu_group)},
          {"virtual_function", i.virtual_function},
          {"power_state", i.power_state},
          {"aer",
           {{"correctable", maybe(i.aer.correctable)},
            {"nonfatal", maybe(i.aer.nonfatal)},
            {"fatal", maybe(i.aer.fatal)}}},
          {"health", to_string(row.health.state())},
          {"problems", problems}};
}

std::string dash(const std::string& text) { return text.empty() ? "-" : text; }

template <class T>
std::string number(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "-";
}

std::string link_text(const Row& row) {
  const PciInfo& i = row.f.info;
  if (!i.link_now && !i.link_max) return "-";
  auto one = [](const std::optional<PciLink>& l) {
    return l ? fmt::format("{:g}x{}", l->gts, l->width) : "?";
  };
  bool degraded = std::any_of(row.health.problems.begin(), row.health.problems.end(),
                              [](const auto& p) { return p.state == HealthState::degraded_link; });
  return fmt::format("{} / {}{}", one(i.link_now), one(i.link_max), degraded ? " !" : "");
}

std::string full_name(const FoundFunction& f) {
  std::string name =
      f.vendor_name + (f.vendor_name.empty() || f.device_name.empty() ? "" : " ") + f.device_name;
  if (f.device_name.empty()) name += fmt::format("{}device {:04x}", name.empty() ? "" : " ", f.info.device);
  return printable(fmt::format(
      "{} [{}]", name, f.class_name.empty() ? fmt::format("class {:06x}", f.info.class_code) : f.class_name));
}

std::vector<std::string> cells(const Row& row) {
  const PciInfo& i = row.f.info;
  return {to_string(i.bdf),
          fmt::format("{:04x}:{:04x}", i.vendor, i.device),
          dash(printable(i.driver)),
          link_text(row),
          number(i.numa_node),
          number(i.iommu_group),
          i.aer.known() ? fmt::format("{}/{}/{}", number(i.aer.correctable), number(i.aer.nonfatal),
                                      number(i.aer.fatal))
                        : "-",
          std::string(to_string(row.health.state()))};
}

// Characters of a line on a terminal; 0: no terminal, lines are not cut.
size_t terminal_width() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0) return 0;
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40 ? size.ws_col : 100;
}

std::string cut(const std::string& line, size_t width) {
  return width == 0 || line.size() <= width ? line : line.substr(0, width - 3) + "...";
}

std::string coloured(HealthState state, const std::string& text, bool colour) {
  if (!colour) return text;
  const char* code = state == HealthState::ok                                                   ? "32"
                     : state == HealthState::not_responding || state == HealthState::aer_errors ? "31"
                                                                                                : "33";
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

std::string table(const std::vector<Row>& rows) {
  const std::vector<std::string> head = {"BDF",  "IDS",   "DRIVER",    "LINK now / max (GT/s x lanes)",
                                         "NUMA", "IOMMU", "AER c/n/f", "HEALTH"};
  std::vector<size_t> widths;
  for (const auto& h : head) widths.push_back(h.size());
  for (const Row& row : rows) {
    auto texts = cells(row);
    for (size_t c = 0; c < texts.size(); ++c) widths[c] = std::max(widths[c], texts[c].size());
  }
  size_t width = terminal_width();
  bool colour = width != 0 && std::getenv("NO_COLOR") == nullptr;
  auto line = [&](const std::vector<std::string>& texts) {
    std::string out;
    for (size_t c = 0; c + 1 < texts.size(); ++c) out += fmt::format("{:<{}}  ", texts[c], widths[c]);
    return out;
  };
  std::string out = line(head) + head.back() + "\n";
  for (const Row& row : rows) {
    auto texts = cells(row);
    out += line(texts) + coloured(row.health.state(), texts.back(), colour) + "\n";
    out += cut("  " + full_name(row.f), width) + "\n";
    std::vector<std::string> nodes;
    for (const auto& n : row.f.info.nodes)
      nodes.push_back(n.path + (n.is_node && !n.present ? " (missing)" : ""));
    if (!nodes.empty())
      out += cut(printable(fmt::format("  nodes: {}", fmt::join(nodes, " "))), width) + "\n";
    for (const auto& p : row.health.problems)
      out += cut(printable(fmt::format("  {}: {}", to_string(p.state), p.reason)), width) + "\n";
  }
  return out;
}

void run_ls(const LsOptions& options) {
  auto rows = gather(options);
  if (options.json) {
    json out = {{"schema", 1}, {"devices", json::array()}};
    for (const Row& row : rows) out["devices"].push_back(to_json(row));
    write_output(out.dump(1, ' ', false, json::error_handler_t::replace) + "\n", "");
  } else if (rows.empty()) {
    write_output(options.all ? "this machine shows no PCI functions\n"
                             : "no accelerator on this machine; kangzao ls --all lists every PCI function\n",
                 "");
  } else {
    write_output(table(rows), "");
  }
}

}  // namespace

void add_ls(CLI::App& app, int& exit_status) {
  auto* sub =
      app.add_subcommand("ls", "accelerators of this machine: link, driver, nodes, AER counts, health");
  sub->footer(
      "Examples:\n"
      "  kangzao ls                        every accelerator\n"
      "  kangzao ls --all                  every PCI function\n"
      "  kangzao ls 0000:01:00.0 --json    one function, as a JSON document\n"
      "  kangzao ls 1234:4b5a              by vendor and device id");
  auto options = std::make_shared<LsOptions>();
  sub->add_option("device", options->names, "address (0000:01:00.0) or vendor:device (1234:4b5a)");
  sub->add_flag("--all", options->all, "every PCI function, not only accelerators");
  sub->add_flag("--json", options->json, "one JSON document on standard output");
  sub->callback([options, &exit_status] {
    run_ls(*options);
    exit_status = 0;
  });
}

}  // namespace kz
