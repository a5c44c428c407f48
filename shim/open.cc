// SPDX-License-Identifier: GPL-2.0-or-later
// The one place that knows which scheme opens which backend.
#include <fmt/format.h>

#include <filesystem>

#include "shim/base/error.h"
#include "shim/dev/device.h"
#include "shim/device.h"
#include "shim/owned_device.h"
#include "shim/pci/pci_device.h"
#include "shim/pci/rules.h"
#include "shim/softtpu_process.h"
#include "shim/tpu/device.h"
#include "shim/tpu/vfio_user_transport.h"

namespace kz {
namespace {

Identity identify(const std::string& uri, ConfigSpace& c) {
  Identity id;
  id.uri = uri;
  id.vendor = c.read16(0x00);
  id.device = c.read16(0x02);
  id.revision = c.read8(0x08);
  id.class_code = c.read32(0x08) >> 8;
  id.subsystem_vendor = c.read16(0x2c);
  id.subsystem = c.read16(0x2e);
  id.name = fmt::format("{:04x}:{:04x} reference TPU", id.vendor, id.device);
  id.serial = serial_of(c);
  return id;
}

std::unique_ptr<Device> open_socket(const std::string& uri, const std::string& socket,
                                    const OpenOptions& options) {
  auto transport = tpu::open_vfio_user(socket, options.timeout);
  Identity id = identify(uri, transport->config());
  return std::make_unique<tpu::TpuDevice>(std::move(transport), std::move(id), options.bring_up);
}

std::unique_ptr<Device> open_vfio_user(const Uri& uri, const OpenOptions& options) {
  only_options(uri, {});
  return open_socket(uri.text, uri.path, options);
}

// sun_path holds 107 bytes; a run's folder may be deeper than that, or have a softtpu already.
std::string socket_folder(const std::string& run_dir) {
  constexpr size_t longest = 85;
  std::error_code ec;
  bool fits = run_dir.size() <= longest && !std::filesystem::exists(run_dir + "/softtpu.sock", ec);
  return fits ? run_dir : "";
}

std::unique_ptr<Device> open_softtpu(const Uri& uri, const OpenOptions& options) {
  auto process = std::make_shared<SoftTpuProcess>(SoftTpuSpec{.options = uri.options,
                                                              .directory = socket_folder(options.run_dir),
                                                              .extra = {"--one-client"},
                                                              .timeout = options.timeout});
  auto device = open_socket(uri.text, process->socket(), options);
  return std::make_unique<OwnedDevice>(std::move(device), std::move(process));
}

std::unique_ptr<Device> not_built(const Uri& uri, const OpenOptions&) {
  throw Error({Errc::unsupported, "open", "'" + uri.text + "'",
               fmt::format("there is no {}: backend yet", uri.scheme),
               "there are softtpu:, vfio-user:, dev:, pci: and dump:", 0});
}

struct Scheme {
  std::string_view name;
  std::unique_ptr<Device> (*open)(const Uri&, const OpenOptions&);
};
constexpr Scheme table[] = {
    {"softtpu", open_softtpu}, {"vfio-user", open_vfio_user}, {"pci", open_pci},
    {"dump", open_dump},       {"vfio", not_built},           {"dev", dev::open_dev},
    {"adapter", not_built},
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& text, const OpenOptions& options) {
  Uri uri = parse_uri(text);
  for (const Scheme& s : table)
    if (s.name == uri.scheme) return s.open(uri, options);
  return not_built(uri, options);
}

}  // namespace kz
