// SPDX-License-Identifier: GPL-2.0-or-later
// Regions, resets and power of the device; the registers of BAR0 are in registers.cc.
#include "tools/softtpu/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "shim/base/error.h"
#include "shim/uapi/kz_regs.h"

namespace kz::softtpu {

namespace {

// How long the firmware takes to come back.
std::chrono::milliseconds reset_time(uint32_t reason) {
  switch (reason) {
    case KZ_RR_FLR:
      return 5ms;
    case KZ_RR_BUS:
      return 8ms;
    default:
      return 15ms;
  }
}

const DeviceOptions& checked(const DeviceOptions& o) {
  if (o.queues < 8 || o.queues > 32)
    throw Error(
        {Errc::usage, "set up", "softtpu", fmt::format("{} queues; 8 to 32 are possible", o.queues), {}});
  return o;
}

ConfigOptions config_options(const DeviceOptions& o) {
  return {.irq = o.irq,
          .vectors = o.queues,
          .hbm_bar_bytes = std::bit_ceil(std::max<uint64_t>(o.engine.hbm_bytes, 4096)),
          .serial = o.serial};
}

}  // namespace

Device::Device(const DeviceOptions& options, FaultBoard& faults)
    : options_(checked(options)),
      faults_(faults),
      dma_(faults),
      irqs_(options.irq, options.queues),
      config_(config_options(options)),
      engine_(std::make_unique<Engine>(options.engine, faults, dma_)),
      shared_{.bus = dma_,
              .engine = *engine_,
              .irqs = irqs_,
              .faults = faults,
              .vectors = options.queues,
              .service_time = options.service_time} {
  dma_.ask_for_unmapped(options.ask_for_unmapped);
  for (unsigned q = 0; q < options.queues; ++q)
    shared_.queues.push_back(std::make_unique<Queue>(static_cast<uint16_t>(q), shared_));
  engine_->on_context_gone([this](uint32_t context) { context_gone(context); });
  restore_registers();
  sync();
}

Device::~Device() { stop_queues(); }

// Runs on the worker that executes the CTX_DESTROY, a queue of context 0.
void Device::context_gone(uint32_t context) {
  for (auto& q : shared_.queues)
    if (context != 0 && q->context() == context) q->disable();
}

void Device::stop_queues() {
  dma_.remote().detach();
  for (auto& q : shared_.queues) q->request_stop();
  for (auto& q : shared_.queues) q->stop();
}

void Device::sync() {
  bool powered = !gone_ && !config_.in_d3();
  dma_.set_bus_master(config_.bus_master());
  dma_.set_powered(powered);
  irqs_.set_function(config_.msi_enabled(), config_.msi_function_masked(), config_.msi_vectors_enabled(),
                     config_.msi_mask_bits());
  irqs_.set_reachable(powered && config_.bus_master());
  shared_.reachable = powered;
}

bool Device::bars_reachable() const { return !gone_ && !config_.in_d3() && config_.memory_enabled(); }

Device::Region Device::region(uint32_t index) const {
  switch (index) {
    case vfio_user::region_bar0 + KZ_BAR_REGS:
      return {KZ_BAR0_SIZE};
    case vfio_user::region_bar0 + KZ_BAR_MSIX:
      return {KZ_BAR2_SIZE};
    case vfio_user::region_bar0 + KZ_BAR_HBM: {
      Region r{std::bit_ceil(std::max<uint64_t>(options_.engine.hbm_bytes, 4096))};
      r.areas = engine_->direct_ranges();
      if (!r.areas.empty()) r.fd = engine_->hbm_fd();
      return r;
    }
    case vfio_user::region_config:
      return {cfg::size};
    default:
      return {};
  }
}

bool Device::region_read(uint32_t index, uint64_t offset, std::span<std::byte> out) {
  uint64_t size = index < vfio_user::region_count ? region(index).size : 0;
  if (offset > size || out.size() > size - offset || size == 0) return false;
  auto at = static_cast<uint32_t>(offset);
  bool config = index == vfio_user::region_config;
  if (config ? gone_ : !bars_reachable()) {
    std::fill(out.begin(), out.end(), std::byte{0xff});
  } else if (config) {
    config_.set_msi_pending(irqs_.pending());
    config_.read(at, out);
  } else if (index == KZ_BAR_REGS) {
    bar0_read(at, out);
  } else if (index == KZ_BAR_MSIX) {
    irqs_.table_read(at, out);
  } else {
    uint64_t hbm = options_.engine.hbm_bytes,
             have = offset < hbm ? std::min<uint64_t>(out.size(), hbm - offset) : 0;
    std::fill(out.begin() + static_cast<ptrdiff_t>(have), out.end(), std::byte{0xff});
    if (have > 0) engine_->aperture_read(offset, out.first(have));
  }
  return true;
}

bool Device::region_write(uint32_t index, uint64_t offset, std::span<const std::byte> in) {
  uint64_t size = index < vfio_user::region_count ? region(index).size : 0;
  if (offset > size || in.size() > size - offset || size == 0) return false;
  auto at = static_cast<uint32_t>(offset);
  bool config = index == vfio_user::region_config;
  if (config ? gone_ : !bars_reachable()) return true;
  if (config) {
    bool flr = config_.write(at, in);
    if (flr) reset(KZ_RR_FLR);
    sync();
  } else if (index == KZ_BAR_REGS) {
    bar0_write(at, in);
  } else if (index == KZ_BAR_MSIX) {
    irqs_.table_write(at, in);
  } else {
    uint64_t hbm = options_.engine.hbm_bytes,
             have = offset < hbm ? std::min<uint64_t>(in.size(), hbm - offset) : 0;
    if (have > 0) engine_->aperture_write(offset, in.first(have));
  }
  return true;
}

std::vector<int> Device::doorbell_fds() const {
  std::vector<int> fds;
  for (const auto& q : shared_.queues) fds.push_back(q->doorbell_fd());
  return fds;
}

int Device::set_irqs(const vfio_user::SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds) {
  int err = irqs_.set_irqs(set, data, fds);
  uint32_t own = options_.irq == IrqMode::msix ? vfio_user::irq_msix : vfio_user::irq_msi;
  bool connects = (set.flags & vfio_user::set_data_eventfd) != 0;
  bool off = (set.flags & vfio_user::set_data_none) != 0 && set.count == 0;
  if (err == 0 && set.index == own && (connects || off)) {
    unsigned n = irqs_.connected();
    config_.enable_msi(n > 0, n);
    sync();
  }
  return err;
}

void Device::reset(uint32_t reason) {
  // Workers may wait for the client's memory: they give up now, the client stays attached.
  for (auto& q : shared_.queues) q->request_stop();
  for (auto& q : shared_.queues) q->restore();
  engine_->reset(reason);
  restore_registers();
  if (reason == KZ_RR_FIRMWARE) {
    irqs_.reset_device_mask();
  } else {
    irqs_.reset();
    config_.reset(reason == KZ_RR_FLR ? ConfigModel::Reset::flr : ConfigModel::Reset::bus);
  }
  bool never = faults_.due(Row::F05) != nullptr;
  resetting_until_ = never ? Clock::time_point::max() : Clock::now() + reset_time(reason);
  sync();
}

void Device::bus_reset() {
  if (!gone_) reset(KZ_RR_BUS);
}

void Device::client_left() {
  stop_queues();
  for (auto& q : shared_.queues) {
    q->restore();
    q->renew_doorbell();
  }
  irqs_.forget_client();
  irqs_.reset();
  config_.reset(ConfigModel::Reset::power_on);
  engine_->power_on();
  dma_.forget_client();
  restore_registers();
  resetting_until_ = {};
  sync();
}

void Device::tick() {
  engine_->tick();
  // A brown-out takes the link with it; it comes back with the supply.
  if (bool lost = engine_->link_lost(); lost != supply_lost_) {
    supply_lost_ = lost;
    set_gone(lost);
  }
  for (auto& q : shared_.queues) q->tick(std::chrono::milliseconds(watchdog_ms_));
}

void Device::set_gone(bool gone) {
  gone_ = gone;
  sync();
  for (auto& q : shared_.queues) q->poke();
}

void Device::set_link(std::optional<unsigned> width, std::optional<unsigned> speed) {
  unsigned w = width.value_or(link_width()), s = speed.value_or(link_speed());
  if (!std::has_single_bit(w) || w > 16 || s < 1 || s > 5)
    throw Error({Errc::usage,
                 "set link",
                 fmt::format("x{} speed {}", w, s),
                 "widths are 1, 2, 4, 8, 16, speeds 1 (2.5 GT/s) to 5 (32 GT/s)",
                 {}});
  config_.set_link(w, s);
}

unsigned Device::queues_running() const {
  return static_cast<unsigned>(std::count_if(shared_.queues.begin(), shared_.queues.end(),
                                             [](const auto& q) { return q->running(); }));
}

}  // namespace kz::softtpu
