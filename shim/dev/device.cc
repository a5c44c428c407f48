// SPDX-License-Identifier: GPL-2.0-or-later
// Opening, objects, registers and telemetry of the device; resets are in reset.cc.
#include "shim/dev/device.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>
#include <poll.h>

#include "shim/base/error.h"
#include "shim/dev/buffer.h"
#include "shim/dev/call.h"
#include "shim/dev/capabilities.h"
#include "shim/dev/interrupts.h"
#include "shim/pci/config_live.h"
#include "shim/pci/function.h"
#include "shim/tpu/device.h"
#include "shim/tpu/registers.h"

namespace kz::dev {
namespace {

constexpr auto consistent_copy = 500ms;  // of the telemetry block

Bdf bdf_of(const kz_info& info) {
  return {info.pci_domain, info.pci_bus, static_cast<uint8_t>(info.pci_devfn >> 3),
          static_cast<uint8_t>(info.pci_devfn & 7)};
}

// What sysfs and config space say of the function; a host that does not show it leaves what the driver says.
struct Function {
  Identity identity;
  Capabilities caps;
  std::unique_ptr<ConfigSpace> config;
};

Function look_at_function(const std::string& uri, const kz_info& info) {
  Function f;
  Bdf bdf = bdf_of(info);
  f.identity.uri = uri;
  f.identity.bdf = bdf;
  try {
    PciInfo pci = read_pci_info(bdf);
    bool writable = why_config_is_read_only(bdf).empty();
    auto config = std::make_unique<LiveConfig>(bdf, writable);
    f.identity = identify_function(uri, pci, *config);
    f.caps = function_capabilities(*config, pci);
    f.config = std::move(config);
  } catch (const Error& e) {
    for (Cap cap : {Cap::config_read, Cap::config_write, Cap::config_extended, Cap::sysfs, Cap::node})
      f.caps.blocked[cap] = e.what();
  }
  if (f.identity.serial.empty()) f.identity.serial = serial_text(info.serial);
  return f;
}

void add(Capabilities& to, const Capabilities& more) {
  to.have.insert(more.have.begin(), more.have.end());
  to.why_not.insert(more.why_not.begin(), more.why_not.end());
  to.blocked.insert(more.blocked.begin(), more.blocked.end());
}

}  // namespace

std::unique_ptr<Device> open_dev(const Uri& uri, const OpenOptions& options) {
  only_options(uri, {});
  Node node = open_node(uri.path, options.exclusive);
  kz_info info = node.info;
  if (options.bring_up && info.state == KZ_STATE_DEAD)
    throw Error({Errc::gone, "open", uri.path, "the driver could not bring the device up",
                 "see the kernel log; reset it, or unbind and bind the driver", 0});
  Function function = look_at_function(uri.text, info);
  Capabilities caps = capabilities_of(info, rights_here(node.kernel_name));
  add(caps, function.caps);
  return std::make_unique<DevDevice>(std::make_shared<Core>(std::move(node)), options.exclusive,
                                     std::move(function.identity), std::move(caps),
                                     std::move(function.config));
}

DevDevice::DevDevice(std::shared_ptr<Core> core, bool exclusive, Identity identity, Capabilities caps,
                     std::unique_ptr<ConfigSpace> config)
    : core_(std::move(core)),
      exclusive_(exclusive),
      identity_(std::move(identity)),
      caps_(std::move(caps)),
      config_(std::move(config)),
      root_(std::make_unique<DevContext>(core_, KZ_CTX_ROOT)) {}

// Objects that live on are dead.
DevDevice::~DevDevice() {
  core_->let_go();
  core_->close_dead();
}

ConfigSpace& DevDevice::config() {
  if (config_) return *config_;
  throw Error({Errc::unsupported, "use", identity_.uri,
               "this host shows no configuration space of the device", "", 0});
}

Telemetry DevDevice::telemetry() {
  kz_ioc_telemetry t{};
  int rc = call(core_->fd(), KZ_IOC_TELEMETRY, t);
  for (Deadline deadline(consistent_copy); rc == -EAGAIN && !deadline.passed();)
    rc = call(core_->fd(), KZ_IOC_TELEMETRY, t);
  if (rc < 0) throw_call("read telemetry of", core_->node().path, -rc);
  return tpu::decode_telemetry(std::as_bytes(std::span(&t.t, 1)));
}

uint32_t DevDevice::read_register(uint32_t offset) {
  kz_ioc_reg a{};
  a.offset = offset;
  int rc = call(core_->fd(), KZ_IOC_REG_READ, a);
  if (rc == 0) return a.value;
  std::string target = tpu::register_name(offset) + " of " + core_->node().path;
  if (rc == -EACCES)
    throw Error({Errc::unsupported, "read", target, "the driver does not show this register", "", EACCES});
  throw_call("read", target, -rc);
}

void DevDevice::write_register(uint32_t offset, uint32_t value) {
  kz_ioc_reg a{};
  a.offset = offset;
  a.value = value;
  int rc = call(core_->fd(), KZ_IOC_REG_WRITE, a);
  if (rc == 0) return;
  std::string target = tpu::register_name(offset) + " of " + core_->node().path;
  if (rc == -EACCES)
    throw Error({Errc::unsupported, "write", target, "the driver does not let a user write this register", "",
                 EACCES});
  throw_call("write", target, -rc);
}

void DevDevice::wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) {
  auto read = [&] {
    kz_ioc_reg a{};
    a.offset = offset;
    int rc = call_by(deadline, core_->fd(), KZ_IOC_REG_READ, a);
    if (rc == -EAGAIN)
      throw Error(
          {Errc::timeout, "wait for", tpu::register_name(offset) + " of " + core_->node().path,
           fmt::format("the driver is still resetting the device after {}", to_string(deadline.elapsed())),
           "see the kernel log", 0});
    return rc == 0 ? a.value : read_register(offset);  // which says what is wrong with it
  };
  tpu::wait_register(read, core_->node().path, offset, mask, want, deadline);
}

std::shared_ptr<DmaBuffer> DevDevice::dma_buffer(const DmaSpec& spec) {
  return std::make_shared<Buffer>(core_, spec);
}

std::unique_ptr<Context> DevDevice::create_context() {
  core_->check_there("create", "a context on " + core_->node().path);
  return dev::create_context(core_);
}

HbmAddr DevDevice::physical(const Context& context, HbmAddr addr) {
  kz_ioc_hbm a{};
  a.ctx = context.id();
  a.addr = addr.value;
  int rc = call(core_->fd(), KZ_IOC_HBM_QUERY, a);
  if (rc == 0) return {a.phys};
  throw_call("translate", fmt::format("HBM address {:#x} of context {}", addr.value, context.id()), -rc,
             a.status);
}

Aperture& DevDevice::aperture() {
  if (aperture_ == nullptr || aperture_->dead()) {
    aperture_.reset();
    aperture_ = std::make_unique<DevAperture>(core_);
  }
  return *aperture_;
}

std::vector<uint64_t> DevDevice::interrupt_counts() {
  auto counts = interrupt_counts_of(core_->node().kernel_name);
  if (!counts.empty()) return counts;
  throw Error({Errc::unsupported, "count interrupts of", core_->node().path,
               "/proc/interrupts does not show them", "", 0});
}

}  // namespace kz::dev
