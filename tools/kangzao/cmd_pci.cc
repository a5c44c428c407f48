// SPDX-License-Identifier: GPL-2.0-or-later
// kangzao pci: configuration space read by name, compared and judged; of this machine or of a dump.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "shim/base/text.h"
#include "shim/pci/discovery.h"
#include "shim/pci/tree.h"
#include "tools/kangzao/commands.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using nlohmann::json;

struct PciOptions {
  std::vector<std::string> targets;
  bool all = false, json = false;
};

// Functions of a tree that a target names, and the tree that they live in.
struct Chosen {
  std::shared_ptr<PciTree> tree;
  std::vector<const TreeFunction*> functions;
};

[[noreturn]] void nothing_there(const std::string& target, const std::string& why, const std::string& next) {
  throw Error({Errc::usage, "read target", "'" + target + "'", why, next, 0});
}

// "dump:FILE", "dump:FILE,bdf=01:00.0" or the path of a file: a dump. An address or vendor:device: this
// machine.
Chosen choose(const std::string& target, std::shared_ptr<PciTree>& host) {
  Chosen out;
  std::string path;
  std::optional<Bdf> bdf;
  if (target.starts_with("dump:")) {
    path = target.substr(5);
    if (size_t comma = path.rfind(",bdf="); comma != path.npos) {
      bdf = parse_bdf(path.substr(comma + 5));
      path.resize(comma);
    }
  } else if (target.find('/') != target.npos || std::filesystem::is_regular_file(target)) {
    path = target;
  }
  if (!path.empty()) {
    out.tree = std::make_shared<PciTree>(tree_of_dump(path));
    for (const auto& f : out.tree->functions())
      if (!bdf || f.bdf == *bdf) out.functions.push_back(&f);
    if (out.functions.empty())
      nothing_there(target, "the dump has no such function", "kangzao pci show " + path + " lists all");
    return out;
  }
  PciSelector selector = parse_selector(target);
  if (!host) host = std::make_shared<PciTree>(tree_of_host());
  out.tree = host;
  for (const auto& f : host->functions()) {
    PciInfo id;
    id.bdf = f.bdf;
    id.vendor = f.config->read16(0);
    id.device = f.config->read16(2);
    if (selector.matches(id)) out.functions.push_back(&f);
  }
  if (out.functions.empty())
    nothing_there(target, "this machine has no such PCI function",
                  (selector.bdf ? "nearest: " + nearest_functions(*selector.bdf) + "; " : std::string()) +
                      "kangzao ls --all lists every one");
  return out;
}

std::vector<Chosen> choose_all(const std::vector<std::string>& targets) {
  std::vector<Chosen> out;
  std::shared_ptr<PciTree> host;
  for (const auto& t : targets) out.push_back(choose(t, host));
  if (targets.empty()) {
    Chosen all{std::make_shared<PciTree>(tree_of_host()), {}};
    for (const auto& f : all.tree->functions()) all.functions.push_back(&f);
    out.push_back(std::move(all));
  }
  return out;
}

json json_of(const DecodedRegister& r) {
  json fields = json::object();
  for (const auto& f : r.fields)
    fields[std::string(f.name)] = {{"value", f.value}, {"text", f.text}, {"lsb", f.lsb}, {"msb", f.msb}};
  return {{"name", r.name}, {"offset", r.offset}, {"bytes", r.bytes}, {"value", r.value}, {"fields", fields}};
}

json json_of(const TreeFunction& f) {
  json structures = json::array(), faults = json::array();
  for (const auto& s : f.decoded) {
    json registers = json::array();
    for (const auto& r : s.registers) registers.push_back(json_of(r));
    structures.push_back({{"name", s.name},
                          {"section", s.section},
                          {"id", s.id},
                          {"offset", s.offset},
                          {"version", s.version},
                          {"extended", s.extended},
                          {"known", s.known},
                          {"cut", s.cut},
                          {"registers", registers}});
  }
  for (const auto& fault : f.walk.faults) faults.push_back(fault.text);
  return {{"bdf", to_string(f.bdf)},   {"title", printable(f.title)},
          {"bytes", f.config->size()}, {"above", f.above ? json(to_string(f.above->bdf)) : json(nullptr)},
          {"structures", structures},  {"chain_faults", faults}};
}

// Fields that say something; all of them with --all.
std::string fields_line(const DecodedRegister& r, bool all) {
  if (r.fields.size() == 1 && r.fields[0].msb - r.fields[0].lsb + 1 == r.bytes * 8) return r.fields[0].text;
  std::vector<std::string> out;
  for (const auto& f : r.fields) {
    if (!all && f.value == 0 && (f.flag || f.text == "0" || f.text == "0x0" || f.text == "none")) continue;
    out.push_back(f.flag ? fmt::format("{}{}", f.name, all ? f.text : "")
                         : fmt::format("{} {}", f.name, f.text));
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

// Lines of at most 120 columns, broken after a comma.
std::string wrapped(std::string_view text, size_t indent) {
  const size_t width = 120 - indent;
  std::string out;
  while (text.size() > width) {
    size_t at = text.rfind(", ", width);
    if (at == text.npos) break;
    out += fmt::format("{},\n{:{}}", text.substr(0, at), "", indent);
    text.remove_prefix(at + 2);
  }
  return out + std::string(text);
}

void show(const TreeFunction& f, bool all) {
  fmt::print("{}  {}\n", to_string(f.bdf), printable(f.title));
  for (const auto& s : f.decoded) {
    fmt::print("  [{:03x}] {}{}{}\n", s.offset, s.name, s.extended ? fmt::format(" v{}", s.version) : "",
               s.section.empty() ? "" : "  (" + s.section + ")");
    for (const auto& r : s.registers) {
      if (!all && r.value == 0) continue;
      constexpr size_t indent = 60;
      std::string name = r.name.size() > 36 ? r.name.substr(0, 35) + "~" : r.name;
      fmt::print("    {:03x}  {:<36} {:>#{}x}  {}\n", r.offset, name, r.value, r.bytes > 4 ? 18 : 12,
                 wrapped(fields_line(r, all), indent));
    }
    if (s.cut) fmt::print("         the rest is not in what can be read ({} bytes)\n", f.config->size());
  }
  for (const auto& fault : f.walk.faults) fmt::print("  {}\n", fault.text);
}

int run_show(const PciOptions& o) {
  json functions = json::array();
  for (const auto& chosen : choose_all(o.targets))
    for (const TreeFunction* f : chosen.functions) {
      if (o.json)
        functions.push_back(json_of(*f));
      else
        show(*f, o.all);
    }
  if (o.json) fmt::print("{}\n", json{{"schema", "kangzao.pci/1"}, {"functions", functions}}.dump(2));
  return 0;
}

int run_check(const PciOptions& o) {
  json out = json::array();
  size_t functions = 0, broken = 0, odd = 0, short_ones = 0;
  for (const auto& chosen : choose_all(o.targets))
    for (const TreeFunction* f : chosen.functions) {
      ++functions;
      short_ones += f->config->size() < 256;
      for (const auto& finding : check_function(*f)) {
        (finding.warning ? odd : broken) += 1;
        if (o.json)
          out.push_back({{"bdf", to_string(f->bdf)},
                         {"rule", finding.rule},
                         {"offset", finding.offset},
                         {"got", finding.got},
                         {"text", finding.text},
                         {"warning", finding.warning}});
        else
          fmt::print("{} {} [{:03x}] {} (got {}; {})\n", to_string(f->bdf),
                     finding.warning ? "odd   " : "broken", finding.offset, finding.text, finding.got,
                     finding.rule);
      }
    }
  if (o.json)
    fmt::print("{}\n", json{{"schema", "kangzao.pci/1"},
                            {"functions", functions},
                            {"broken", broken},
                            {"odd", odd},
                            {"cut", short_ones},
                            {"findings", out}}
                           .dump(2));
  else
    fmt::print(
        "{} functions: {} rules broken, {} oddities{}\n", functions, broken, odd,
        short_ones
            ? fmt::format("; of {} only the header could be read, nothing is said of their capabilities",
                          short_ones)
            : "");
  return broken ? 1 : 0;
}

void print_change(const Bdf& bdf, const ConfigChange& c) {
  std::string what = c.reg.empty() ? c.structure : fmt::format("{}: {}", c.structure, c.reg);
  if (!c.field.empty() && c.field != c.reg) what += ": " + c.field;
  fmt::print("{} [{:03x}] {}: {} -> {}{}\n", to_string(bdf), c.offset, what, c.before_text, c.after_text,
             c.by_itself ? "  (changes by itself)" : "");
}

int run_diff(const PciOptions& o) {
  std::shared_ptr<PciTree> host;
  Chosen a = choose(o.targets.at(0), host), b = choose(o.targets.at(1), host);
  bool single = a.functions.size() == 1 &&
                b.functions.size() == 1;  // two functions of different address may be compared
  json out = json::array();
  size_t real = 0, own = 0;
  auto lone = [&](const TreeFunction& f, const char* only) {
    ++real;
    if (o.json)
      out.push_back({{"bdf", to_string(f.bdf)},
                     {"structure", "function"},
                     {"before", only == std::string("first")},
                     {"after", only != std::string("first")}});
    else
      fmt::print("{} is only in the {}\n", to_string(f.bdf), only);
  };
  for (const TreeFunction* f : a.functions) {
    auto it =
        std::ranges::find_if(b.functions, [&](const TreeFunction* g) { return single || g->bdf == f->bdf; });
    if (it == b.functions.end()) {
      lone(*f, "first");
      continue;
    }
    for (const auto& c : diff_config(*f->config, *(*it)->config)) {
      (c.by_itself ? own : real) += 1;
      if (o.json)
        out.push_back({{"bdf", to_string(f->bdf)},
                       {"structure", c.structure},
                       {"register", c.reg},
                       {"field", c.field},
                       {"offset", c.offset},
                       {"lsb", c.lsb},
                       {"msb", c.msb},
                       {"before", c.before},
                       {"after", c.after},
                       {"before_text", c.before_text},
                       {"after_text", c.after_text},
                       {"by_itself", c.by_itself}});
      else
        print_change(f->bdf, c);
    }
  }
  for (const TreeFunction* g : b.functions)
    if (!single && std::ranges::none_of(a.functions, [&](const TreeFunction* f) { return f->bdf == g->bdf; }))
      lone(*g, "second");
  if (o.json)
    fmt::print("{}\n", json{{"schema", "kangzao.pci/1"}, {"changes", out}}.dump(2));
  else
    fmt::print("{} differences{}\n", real, own ? fmt::format(", and {} of what changes by itself", own) : "");
  return real ? 1 : 0;
}

// Rows as `lspci -xxxx` prints them: what `diff` takes as one of its two.
int run_dump(const PciOptions& o) {
  for (const auto& chosen : choose_all(o.targets))
    for (const TreeFunction* f : chosen.functions) {
      fmt::print("{} {}\n", to_string(f->bdf), printable(f->title));
      for (uint32_t at = 0; at + 16 <= f->config->size(); at += 16) {
        fmt::print("{:02x}:", at);
        for (uint32_t i = 0; i < 16; ++i) fmt::print(" {:02x}", f->config->read8(at + i));
        fmt::print("\n");
      }
      fmt::print("\n");
    }
  return 0;
}

}  // namespace

void add_pci(CLI::App& app, int& status) {
  auto* pci = app.add_subcommand("pci", "configuration space by name: show, check, compare, dump");
  pci->require_subcommand(1);
  auto options = std::make_shared<PciOptions>();
  constexpr const char* what =
      "01:00.0, 1234:4b5a, or a dump: FILE, dump:FILE,bdf=01:00.0 (none: all of this machine)";
  auto add = [&](const char* name, const char* does, int (*run)(const PciOptions&), bool has_json) {
    auto* sub = pci->add_subcommand(name, does);
    sub->add_option("target", options->targets, what);
    if (has_json) sub->add_flag("--json", options->json, "one JSON document");
    sub->callback([options, run, &status] { status = run(*options); });
    return sub;
  };
  add("show", "header and capabilities, registers and fields by name", run_show, true)
      ->add_flag("--all", options->all, "registers that are 0 and flags that are not set too");
  add("check", "rules of the PCIe specification, within a function and along its path", run_check, true);
  add("dump", "rows as lspci -xxxx prints them", run_dump, false);
  auto* diff = add("diff", "two snapshots, field by field", run_diff, true);
  diff->get_option("target")->expected(2)->required();
  pci->footer(
      "Examples:\n  kangzao pci show 01:00.0\n  kangzao pci dump 01:00.0 > before.txt\n"
      "  kangzao pci diff before.txt 01:00.0      what a reset has changed\n"
      "  kangzao pci check lspci-of-a-user.txt    rules of a dump, path included where it has the ports\n"
      "Exit: 0 nothing found, 1 a rule broken or a difference (status bits do not count), 2 usage, 4 host "
      "trouble");
}

}  // namespace kz
