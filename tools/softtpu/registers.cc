// SPDX-License-Identifier: GPL-2.0-or-later
// BAR0: decode of registers, telemetry, queue blocks and doorbells (shim/uapi/kz_regs.h).
#include <algorithm>
#include <cstring>

#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"
#include "tools/softtpu/device.h"

namespace kz::softtpu {

namespace {

constexpr uint32_t queue_base = KZ_REG_QUEUE(0), queue_stride = 0x40;
constexpr uint32_t doorbell_base = KZ_REG_DOORBELL(0), doorbell_stride = 8;
constexpr uint32_t ready_100ms = 10;  // promised; in truth a few milliseconds, but hosts can be slow
constexpr uint32_t iova_bits = 64;
constexpr uint32_t default_watchdog_ms = 2000;
constexpr std::chrono::milliseconds enable_time{2};

bool is_register_access(uint32_t offset, size_t bytes) { return bytes == 4 && offset % 4 == 0; }

}  // namespace

void Device::restore_registers() {
  ctrl_ = 0;
  scratch_ = 0;
  time_hi_ = 0;
  watchdog_ms_ = default_watchdog_ms;
  ready_at_ = Clock::time_point::max();
  shared_.ready_at = INT64_MAX;
}

void Device::bar0_read(uint32_t offset, std::span<std::byte> out) {
  constexpr uint32_t telemetry = KZ_REG_TELEMETRY, end = telemetry + sizeof(kz_telemetry);
  if (offset >= telemetry && offset < end && out.size() <= end - offset) {
    kz_telemetry block{};
    engine_->read_telemetry(block);
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(&block) + (offset - telemetry), out.size());
  } else if (is_register_access(offset, out.size())) {
    uint32_t value = read_register(offset);
    std::memcpy(out.data(), &value, sizeof value);
  } else {
    std::fill(out.begin(), out.end(), std::byte{0xff});
  }
}

void Device::bar0_write(uint32_t offset, std::span<const std::byte> in) {
  if (!is_register_access(offset, in.size())) return;
  uint32_t value;
  std::memcpy(&value, in.data(), sizeof value);
  write_register(offset, value);
}

std::optional<uint32_t> Device::read_identity(uint32_t reg) const {
  switch (reg) {
    case KZ_REG_MAGIC:
      return KZ_MAGIC;
    case KZ_REG_ABI:
      return uint32_t{KZ_ABI_MAJOR} << 16 | KZ_ABI_MINOR;
    case KZ_REG_CAP:
      return options_.queues | QueueShared::max_order << 8 | ready_100ms << 16 | iova_bits << 24;
    case KZ_REG_FEAT: {
      uint32_t fixed = options_.service_time.count() > 0 ? KZ_FEAT_FIXED_TIME : 0;
      return engine_->describe(reg).value_or(0) | fixed;
    }
    default:
      return engine_->describe(reg);
  }
}

uint32_t Device::status() {
  auto now = Clock::now();
  uint32_t s = 0;
  if (engine_->fatal()) s |= KZ_STATUS_FATAL | (engine_->fatal_reason() & 0xff) << 8;
  if (now < resetting_until_) s |= KZ_STATUS_RESETTING;
  if (engine_->fw_pending()) s |= KZ_STATUS_FW_PENDING;
  if ((ctrl_ & KZ_CTRL_ENABLE) != 0 && now >= ready_at_ && (s & (KZ_STATUS_FATAL | KZ_STATUS_RESETTING)) == 0)
    s |= KZ_STATUS_READY;
  return s;
}

uint32_t Device::read_register(uint32_t reg) {
  if (reg >= queue_base && reg < queue_base + queue_stride * options_.queues)
    return shared_.queues[(reg - queue_base) / queue_stride]->read((reg - queue_base) % queue_stride);
  switch (reg) {
    case KZ_REG_CTRL:
      return ctrl_;
    case KZ_REG_STATUS:
      return status();
    case KZ_REG_RESET_COUNT:
      return engine_->reset_count();
    case KZ_REG_RESET_REASON:
      return engine_->reset_reason();
    case KZ_REG_FW_VERSION:
      return engine_->fw_version();
    case KZ_REG_WATCHDOG_MS:
      return watchdog_ms_;
    case KZ_REG_SCRATCH:
      return scratch_;
    case KZ_REG_TIME_LO: {
      uint64_t now = engine_->device_ns();
      time_hi_ = static_cast<uint32_t>(now >> 32);
      return static_cast<uint32_t>(now);
    }
    case KZ_REG_TIME_HI:
      return time_hi_;
    case KZ_REG_HEARTBEAT:
      return engine_->heartbeat();
    case KZ_REG_IRQ_MASK:
      return irqs_.device_mask();
    default:
      return read_identity(reg).value_or(0);
  }
}

void Device::write_ctrl(uint32_t value) {
  bool was = (ctrl_ & KZ_CTRL_ENABLE) != 0, now = (value & KZ_CTRL_ENABLE) != 0;
  ctrl_ = value & KZ_CTRL_ENABLE;
  if (now && !was) {
    auto from = std::max(Clock::now(), resetting_until_);
    bool never = from == Clock::time_point::max();
    ready_at_ = never ? from : from + enable_time;
    shared_.ready_at = never ? INT64_MAX : ready_at_.time_since_epoch() / std::chrono::nanoseconds(1);
    for (auto& q : shared_.queues) q->poke();
  }
  if (!now && was) {
    ready_at_ = Clock::time_point::max();
    shared_.ready_at = INT64_MAX;
    for (auto& q : shared_.queues) q->request_stop();
    for (auto& q : shared_.queues) q->reset();
  }
}

void Device::write_register(uint32_t reg, uint32_t value) {
  if (reg >= queue_base && reg < queue_base + queue_stride * options_.queues)
    return shared_.queues[(reg - queue_base) / queue_stride]->write((reg - queue_base) % queue_stride, value);
  if (reg >= doorbell_base && reg < doorbell_base + doorbell_stride * options_.queues &&
      reg % doorbell_stride == 0)
    return shared_.queues[(reg - doorbell_base) / doorbell_stride]->ring();
  switch (reg) {
    case KZ_REG_CTRL:
      return write_ctrl(value);
    case KZ_REG_RESET:
      if (value == KZ_RESET_FIRMWARE) reset(KZ_RR_FIRMWARE);
      return;
    case KZ_REG_WATCHDOG_MS:
      watchdog_ms_ = value;
      return;
    case KZ_REG_SCRATCH:
      scratch_ = value;
      return;
    case KZ_REG_IRQ_MASK:
      irqs_.set_device_mask(value);
      return;
    default:
      return;
  }
}

}  // namespace kz::softtpu
