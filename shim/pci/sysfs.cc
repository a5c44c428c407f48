// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/pci/sysfs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "shim/base/error.h"
#include "shim/base/fd.h"

namespace kz {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_once(const std::string& path, size_t limit, int& err) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) {
    err = errno;
    return std::nullopt;
  }
  std::string text(limit, '\0');
  size_t have = 0;
  while (have < limit) {
    ssize_t n = ::read(fd.get(), text.data() + have, limit - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      err = errno;
      return std::nullopt;
    }
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  text.resize(have);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

template <class T>
std::optional<T> number(const std::optional<std::string>& text, int base) {
  if (!text) return std::nullopt;
  std::string_view s = *text;
  if (base == 16 && s.starts_with("0x")) s.remove_prefix(2);
  T value{};
  auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (ec != std::errc() || end == s.data()) return std::nullopt;
  return value;
}

std::string link_name(const std::string& path) {
  std::error_code ec;
  fs::path target = fs::read_symlink(path, ec);
  return ec ? std::string() : target.filename().string();
}

// "16.0 GT/s PCIe" and "8"; "Unknown", 0 and the all-ones of a dead device give nothing.
std::optional<PciLink> read_link(const std::string& dir, const char* which) {
  auto speed = try_attribute(dir + "/" + which + "_link_speed", 64);
  auto width = number<unsigned>(try_attribute(dir + "/" + which + "_link_width", 64), 10);
  if (!speed || !width) return std::nullopt;
  PciLink link{std::strtod(speed->c_str(), nullptr), *width};
  if (link.gts <= 0 || link.gts > 1000 || link.width == 0 || link.width > 32) return std::nullopt;
  return link;
}

std::optional<uint64_t> aer_total(const std::string& path, std::string_view key) {
  auto text = try_attribute(path);
  if (!text) return std::nullopt;
  auto at = text->find(key);
  if (at == std::string::npos) return std::nullopt;
  at = text->find_first_not_of(' ', at + key.size());
  if (at == std::string::npos) return std::nullopt;
  return number<uint64_t>(text->substr(at), 10);
}

std::vector<PciResource> read_resources(const std::string& path) {
  std::vector<PciResource> all;
  std::istringstream lines(try_attribute(path, 8192).value_or(""));
  for (std::string start, end, flags; lines >> start >> end >> flags;)
    all.push_back({std::strtoull(start.c_str(), nullptr, 16), std::strtoull(end.c_str(), nullptr, 16),
                   std::strtoull(flags.c_str(), nullptr, 16)});
  return all;
}

std::vector<unsigned> read_irqs(const std::string& dir) {
  std::vector<unsigned> irqs;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(dir, ec))
    if (auto n = number<unsigned>(entry.path().filename().string(), 10)) irqs.push_back(*n);
  std::sort(irqs.begin(), irqs.end());
  return irqs;
}

std::optional<Bdf> bdf_of(const std::string& name) {
  try {
    return parse_bdf(name);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The PCI bridge above, and what its link can do.
void read_upstream(PciInfo& info, const std::string& dir) {
  std::error_code ec;
  fs::path real = fs::canonical(dir, ec);
  if (ec) return;
  info.upstream = bdf_of(real.parent_path().filename().string());
  if (info.upstream) info.upstream_link_max = read_link(real.parent_path().string(), "max");
}

// Vendor to class of the header: all ones in all three words is a lost function.
bool header_answers(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<uint8_t, 12> header{};
  if (!fd || ::pread(fd.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    return false;
  return std::any_of(header.begin(), header.end(), [](uint8_t b) { return b != 0xff; });
}

}  // namespace

std::string read_attribute(const std::string& path, size_t limit) {
  int err = 0;
  if (auto text = read_once(path, limit, err)) return *text;
  throw_errno("read", path, err);
}

std::optional<std::string> try_attribute(const std::string& path, size_t limit) {
  int err = 0;
  return read_once(path, limit, err);
}

std::string to_string(const PciLink& link) { return fmt::format("{:g} GT/s x{}", link.gts, link.width); }

PciInfo read_pci_info(const Bdf& bdf, const HostRoots& roots, bool nodes) {
  PciInfo info;
  info.bdf = bdf;
  std::string dir = roots.pci() + "/devices/" + to_string(bdf);
  auto hex16 = [&](const char* name) { return number<uint16_t>(try_attribute(dir + "/" + name, 64), 16); };
  info.vendor = number<uint16_t>(read_attribute(dir + "/vendor", 64), 16).value_or(0);
  info.device = hex16("device").value_or(0);
  info.subsystem_vendor = hex16("subsystem_vendor");
  info.subsystem = hex16("subsystem_device");
  info.class_code = number<uint32_t>(try_attribute(dir + "/class", 64), 16).value_or(0) & 0xffffff;
  info.revision = static_cast<uint8_t>(hex16("revision").value_or(0));
  info.driver = link_name(dir + "/driver");
  info.numa_node = number<int>(try_attribute(dir + "/numa_node", 64), 10);
  if (info.numa_node && *info.numa_node < 0) info.numa_node.reset();
  info.iommu_group = number<int>(link_name(dir + "/iommu_group"), 10);
  info.link_now = read_link(dir, "current");
  info.link_max = read_link(dir, "max");
  read_upstream(info, dir);
  info.resources = read_resources(dir + "/resource");
  info.aer = {aer_total(dir + "/aer_dev_correctable", "TOTAL_ERR_COR"),
              aer_total(dir + "/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
              aer_total(dir + "/aer_dev_fatal", "TOTAL_ERR_FATAL")};
  info.enabled = number<int>(try_attribute(dir + "/enable", 64), 10).value_or(0);
  info.msi_irqs = read_irqs(dir + "/msi_irqs");
  info.power_state = try_attribute(dir + "/power_state", 64).value_or("");
  std::error_code ec;
  info.virtual_function = fs::exists(dir + "/physfn", ec);
  info.responds = header_answers(dir + "/config");
  if (nodes) info.nodes = find_nodes(info, roots);
  return info;
}

}  // namespace kz
