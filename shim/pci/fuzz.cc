// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/fuzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/config_dump.h"
#include "shim/pci/rules.h"

namespace kz {
namespace {

[[noreturn]] void broken(const std::string& what) { throw std::logic_error(what); }

void check_walk(const CapabilityWalk& walk, uint32_t size) {
  size_t standard = 0, extended = 0;
  std::set<uint16_t> seen;
  for (const auto& cap : walk.found) {
    ++(cap.extended ? extended : standard);
    uint32_t low = cap.extended ? 0x100 : 0x40, high = cap.extended ? 0x1000 : 0x100;
    if (cap.offset < low || cap.offset >= std::min(high, size) || cap.offset % 4 != 0)
      broken(fmt::format("capability at {:#x} of {:#x} bytes", cap.offset, size));
    if (!seen.insert(cap.offset).second) broken(fmt::format("capability at {:#x} twice", cap.offset));
  }
  if (standard > 48 || extended > 960) broken(fmt::format("{} + {} capabilities", standard, extended));
}

void check_rules(ConfigSpace& config, const CapabilityWalk& walk) {
  PciInfo info;
  info.resources = {{0x1000, 0x1fff, 0x200}, {}, {}, {}, {}, {}, {}};
  info.enabled = 1;
  info.msi_irqs = {30};
  for (bool vf : {false, true}) {
    info.virtual_function = vf;
    check_header(config, walk, vf);
    check_required(config, walk, vf);
    check_msix(config, walk, {0x1000, 0, 0x1000, 0, 0, 0}, vf);
    compare_ids(config, info);
    compare_bars(config, walk, info);
    compare_enables(config, walk, info);
  }
  check_chains(walk);
  check_duplicates(walk);
  check_bars(config, walk);
  check_link(config, walk);
  check_serial(config, walk);
  check_aer_status(config, walk);
}

std::string print_again(const DumpedFunction& f) {
  std::string text = to_string(f.bdf) + " " + f.title + "\n";
  for (size_t i = 0; i < f.bytes.size(); i += 16) {
    text += fmt::format("{:02x}:", i);
    for (size_t j = i; j < std::min(i + 16, f.bytes.size()); ++j) text += fmt::format(" {:02x}", f.bytes[j]);
    text += "\n";
  }
  return text;
}

}  // namespace

void fuzz_config_walk(std::span<const uint8_t> input) {
  BytesConfig config(std::vector<uint8_t>(input.begin(), input.end()), "fuzz");
  try {
    CapabilityWalk walk = walk_capabilities(config);
    check_walk(walk, config.size());
    if (config.size() >= 64) check_rules(config, walk);
  } catch (const Error& e) {
    broken(std::string("read outside the space: ") + e.what());  // BytesConfig throws Error(usage) for that
  }
}

void fuzz_dump_parser(std::span<const uint8_t> input) {
  std::vector<DumpedFunction> functions;
  try {
    functions = parse_pci_dump({reinterpret_cast<const char*>(input.data()), input.size()}, "fuzz");
  } catch (const Error& e) {
    if (e.code() != Errc::bad_data || !e.info().target.starts_with("fuzz:"))
      broken(std::string("refused without naming the line: ") + e.what());
    return;
  }
  if (functions.empty()) broken("neither a function nor an error");
  for (const auto& f : functions) {
    if (f.bytes.size() < 64 || f.bytes.size() > 4096) broken(fmt::format("{} bytes", f.bytes.size()));
    auto again = parse_pci_dump(print_again(f), "again");
    if (again.size() != 1 || again[0].bdf != f.bdf || again[0].bytes != f.bytes)
      broken("does not read back the same");
    fuzz_config_walk(f.bytes);
  }
}

}  // namespace kz
