// SPDX-License-Identifier: GPL-2.0-or-later
// Link and error counters: PCIe r6.0, sections 7.5.3 and 7.8.4.
#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "pcie/subject.h"
#include "shim/pci/health.h"

namespace kz::test {
namespace {

LinkRegisters need_link(const Subject& s) {
  auto link = read_link_registers(*s.config, s.walk);
  if (link) return *link;
  need_standard_chain(s);
  if (!express_type(*s.config, s.walk)) skip("not a PCI Express function: it has no link");
  skip("the function has no link of its own, or says nothing of it");
}

void add_aer(const char* severity, std::optional<uint64_t> count) {
  if (count.value_or(0) == 0) return;
  evidence(ev::aer, {{"severity", severity}, {"count", *count}});
  warn(fmt::format("{} {} AER errors since boot", *count, severity));
}

}  // namespace

KZ_TEST(pcie_link, status_within_capability,
        {.meaning = "the link runs at a width and speed that the function can do",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  LinkRegisters link = need_link(s);
  judge_rules(check_link(*s.config, s.walk));
  metric("link_gts", link.now.gts, "GT/s");
  metric("link_width", link.now.width, "lanes");
}

KZ_TEST(pcie_link, not_degraded,
        {.meaning = "the link has the width and speed that both its ends can do",
         .level = 1,
         .needs = {Cap::config_read}}) {
  Subject s = look_at(device());
  LinkRegisters link = need_link(s);
  std::optional<PciLink> upstream;
  if (s.info) upstream = s.info->upstream_link_max;
  auto shortfall = judge_link(link.now, link.max, upstream, device().identity().class_code);
  if (!shortfall) return;
  auto add = [&](const char* what, std::string got, std::string max) {
    evidence(ev::link, {{"what", what}, {"got", std::move(got)}, {"max", std::move(max)}});
  };
  if (shortfall->narrow)
    add("narrow", fmt::format("x{}", link.now.width), fmt::format("x{}", shortfall->possible.width));
  if (shortfall->slow)
    add("slow", fmt::format("{:g} GT/s", link.now.gts), fmt::format("{:g} GT/s", shortfall->possible.gts));
  warn(shortfall->text);
}

KZ_TEST(pcie_aer, clean,
        {.meaning = "no AER errors are counted by the kernel or recorded in the function",
         .level = 1,
         .needs = {Cap::config_read, Cap::config_extended}}) {
  Subject s = look_at(device());
  bool counted = s.info && s.info->aer.known();
  if (!find_capability(s.walk, PCI_EXT_CAP_ID_ERR, true) && !counted) {
    need_whole_chain(s);
    skip("the function has no AER capability");
  }
  if (counted) {
    add_aer("correctable", s.info->aer.correctable);
    add_aer("nonfatal", s.info->aer.nonfatal);
    add_aer("fatal", s.info->aer.fatal);
  }
  judge_rules(check_aer_status(*s.config, s.walk));
}

}  // namespace kz::test
