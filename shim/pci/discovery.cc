// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "shim/base/error.h"
#include "shim/pci/libpci.h"

namespace kz {
namespace {

// Drivers that bind accelerators only, from the kernel's drivers/accel and its vendors.
constexpr std::array<std::string_view, 24> kDrivers = {
    "amdxdna", "intel_vpu", "habanalabs", "qaic",   "hailo",  "hailo1x", "apex",        "gasket",
    "neuron",  "xocl",      "xclmgmt",    "nvidia", "amdgpu", "xe",      "tenstorrent", "ethosu",
    "idxd",    "kz_accel",  "mxc",        "memx",   "axl",    "furiosa", "rebellions",  "cambricon"};

struct KnownId {
  uint16_t vendor;
  uint16_t device;  // 0: every device of the vendor
  std::string_view name;
};
// Accelerators whose class does not say so; ids from pci.ids and the drivers' own tables.
constexpr std::array<KnownId, 16> kIds = {{
    {0x1ac1, 0x089a, "Google Coral Edge TPU"},
    {0x1ae0, 0x001f, "Google TPU"},
    {0x1ae0, 0x0027, "Google TPU"},
    {0x1e60, 0x2864, "Hailo-8"},
    {0x1e60, 0x45c4, "Hailo-10"},
    {0x1da3, 0, "Habana Labs"},
    {0x17cb, 0xa080, "Qualcomm AIC080"},
    {0x17cb, 0xa100, "Qualcomm AIC100"},
    {0x17cb, 0xa110, "Qualcomm AIC200"},
    {0x1022, 0x1502, "AMD NPU"},
    {0x1022, 0x17f0, "AMD NPU"},
    {0x8086, 0x7d1d, "Intel NPU"},
    {0x8086, 0xad1d, "Intel NPU"},
    {0x8086, 0x643e, "Intel NPU"},
    {0x1e52, 0, "Tenstorrent"},
    {0x1234, 0x4b5a, "reference TPU"},
}};

constexpr uint64_t linear(const Bdf& b) {
  return static_cast<uint64_t>(b.domain) << 16 | static_cast<uint64_t>(b.bus) << 8 |
         static_cast<uint64_t>(b.device) << 3 | b.function;
}

std::optional<uint16_t> hex4(std::string_view s) {
  uint16_t value = 0;
  if (s.size() != 4) return std::nullopt;
  auto [end, ec] = std::from_chars(s.data(), s.data() + 4, value, 16);
  if (ec != std::errc() || end != s.data() + 4) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string> accelerator_reason(const PciInfo& info) {
  if (info.class_code >> 16 == 0x12) return "class 12, processing accelerator";
  if (info.class_code >> 8 == 0x0302) return "class 0302, 3D controller";
  if (info.class_code >> 8 == 0x0b40) return "class 0b40, co-processor";
  for (const auto& id : kIds)
    if (info.vendor == id.vendor && (id.device == 0 || info.device == id.device))
      return fmt::format("known id, {}", id.name);
  for (std::string_view driver : kDrivers)
    if (info.driver == driver) return fmt::format("driver {}", driver);
  for (const auto& node : info.nodes)
    if (node.subsystem == "accel") return fmt::format("node {}", node.path);
  return std::nullopt;
}

std::vector<FoundFunction> discover_pci(const HostRoots& roots) {
  std::vector<FoundFunction> found;
  PciNames names;
  for (const Bdf& bdf : list_pci(roots)) {
    FoundFunction f;
    try {
      f.info = read_pci_info(bdf, roots);
    } catch (const Error& e) {
      if (e.code() == Errc::not_found) continue;
      throw;
    }
    f.vendor_name = names.vendor(f.info.vendor);
    f.device_name = names.device(f.info.vendor, f.info.device);
    f.class_name = names.class_name(f.info.class_code);
    f.accelerator = accelerator_reason(f.info);
    found.push_back(std::move(f));
  }
  return found;
}

bool PciSelector::matches(const PciInfo& info) const {
  return bdf ? *bdf == info.bdf : vendor == info.vendor && device == info.device;
}

PciSelector parse_selector(std::string_view text) {
  PciSelector s;
  if (text.find('.') != std::string_view::npos) {
    s.bdf = parse_bdf(text);
    return s;
  }
  auto colon = text.find(':');
  auto vendor = hex4(text.substr(0, colon));
  auto device = colon == std::string_view::npos ? std::nullopt : hex4(text.substr(colon + 1));
  if (!vendor || !device)
    throw Error({Errc::usage, "read device name", "'" + std::string(text) + "'",
                 "neither an address nor vendor:device", "write 0000:01:00.0 or 1234:4b5a", 0});
  s.vendor = *vendor;
  s.device = *device;
  return s;
}

std::string nearest_functions(const Bdf& bdf, const HostRoots& roots) {
  auto all = list_pci(roots);
  auto distance = [&](const Bdf& b) {
    uint64_t x = linear(b), y = linear(bdf);
    return x > y ? x - y : y - x;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Bdf& a, const Bdf& b) { return distance(a) < distance(b); });
  std::string text;
  for (size_t i = 0; i < all.size() && i < 3; ++i) {
    std::string dir = roots.pci() + "/devices/" + to_string(all[i]);
    auto id = [&](const char* name) {
      std::string s = try_attribute(dir + "/" + name, 64).value_or("?");
      return s.starts_with("0x") ? s.substr(2) : s;
    };
    text +=
        fmt::format("{}{} {}:{}", text.empty() ? "" : ", ", to_string(all[i]), id("vendor"), id("device"));
  }
  return text;
}

}  // namespace kz
