// SPDX-License-Identifier: GPL-2.0-or-later
#include "pcie/subject.h"

#include <fmt/format.h>

#include "shim/uapi/kz_regs.h"

namespace kz::test {

Subject look_at(Device& device) {
  Subject s;
  s.config = &device.config();
  s.walk = walk_capabilities(*s.config);
  if (device.capabilities().has(Cap::sysfs) && device.identity().bdf) {
    s.info = read_pci_info(*device.identity().bdf);
    s.virtual_function = s.info->virtual_function;
    for (size_t i = 0; i < s.bar_sizes.size() && i < s.info->resources.size(); ++i)
      s.bar_sizes[i] = s.info->resources[i].size();
  } else if (device.capabilities().has(Cap::registers)) {
    s.bar_sizes[KZ_BAR_REGS] = KZ_BAR0_SIZE;
    s.bar_sizes[KZ_BAR_MSIX] = KZ_BAR2_SIZE;
  }
  return s;
}

void need_whole_chain(const Subject& subject) {
  if (subject.walk.complete) return;
  std::string why = fmt::format("only {} bytes of configuration space can be read", subject.config->size());
  for (const auto& f : subject.walk.faults)
    if (f.kind == ChainFault::Kind::truncated) why = f.text;
  block(why + "; run as root, or take the dump with lspci -xxxx as root");
}

void need_standard_chain(const Subject& subject) {
  if (!standard_chain_seen(subject.walk)) need_whole_chain(subject);
}

void judge_rules(const Findings& findings, std::string_view kind) {
  for (const auto& f : findings) {
    evidence(kind, {{"rule", f.rule}, {"offset", f.offset}, {"got", f.got}, {"text", f.text}});
    std::string text = fmt::format("{} ({}; offset {:#x} holds {})", f.text, f.rule, f.offset, f.got);
    if (f.warning)
      warn(text);
    else
      ADD_FAILURE() << text;
  }
}

}  // namespace kz::test
