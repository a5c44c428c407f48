// SPDX-License-Identifier: GPL-2.0-or-later
// Bring-up, resets and recovery of the device.
#include <fmt/format.h>
#include <linux/pci_regs.h>
#include <poll.h>

#include "shim/base/error.h"
#include "shim/tpu/admin.h"
#include "shim/tpu/device.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu {
namespace {

constexpr auto quiesce_budget = 100ms;  // for transactions under way before FLR
constexpr int pause_ms = 1;

void pause() { ::poll(nullptr, 0, pause_ms); }

// The offset of the PCI Express capability, 0 where there is none.
uint32_t express_capability(ConfigSpace& config) {
  for (const PciCapability& cap : walk_capabilities(config).found)
    if (!cap.extended && cap.id == PCI_CAP_ID_EXP) return cap.offset;
  return 0;
}

bool is_bar(uint32_t offset) { return offset >= PCI_BASE_ADDRESS_0 && offset <= PCI_BASE_ADDRESS_5; }

}  // namespace

// What a function or bus reset clears and its user restores: BARs and Device Control (PCI Express r6.0, 6.6.2
// and 6.6.1.1). Command and interrupts come with bring_up().
void TpuDevice::save_config() {
  ConfigSpace& c = config();
  saved_config_.clear();
  for (uint32_t bar = PCI_BASE_ADDRESS_0; bar <= PCI_BASE_ADDRESS_5; bar += 4)
    saved_config_.emplace_back(bar, c.read32(bar));
  if (uint32_t at = express_capability(c); at != 0)
    saved_config_.emplace_back(at + PCI_EXP_DEVCTL,
                               c.read16(at + PCI_EXP_DEVCTL) & ~uint32_t{PCI_EXP_DEVCTL_BCR_FLR});
}

void TpuDevice::restore_config() {
  ConfigSpace& c = config();
  for (auto [offset, value] : saved_config_) {
    if (is_bar(offset))
      c.write32(offset, value);
    else
      c.write16(offset, static_cast<uint16_t>(value));
  }
  uint16_t command = c.read16(PCI_COMMAND);
  c.write16(PCI_COMMAND, static_cast<uint16_t>(command | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER));
}

// From here on nothing that was open touches the device.
void TpuDevice::let_go() {
  ++core_->generation;
  core_->admin.reset();
}

// After a reset a function may answer nothing for a while (PCI Express r6.0, 6.6.1 and 6.6.2): config space
// tells when it is back.
void TpuDevice::await_config(const Deadline& deadline) {
  while (config().read16(PCI_VENDOR_ID) == 0xffff) {
    if (deadline.passed())
      throw Error({Errc::gone, "wait for config space of", core_->transport->name(),
                   fmt::format("the vendor id reads all ones after {} of {}", to_string(deadline.elapsed()),
                               to_string(deadline.budget())),
                   "check power and link of the device", 0});
    pause();
  }
}

void TpuDevice::await_registers(const Deadline& deadline) {
  Transport& t = *core_->transport;
  tpu::wait_register(t, KZ_REG_MAGIC, 0xffffffff, KZ_MAGIC, Deadline(deadline.left()));
  check_identity(t);
  tpu::wait_register(t, KZ_REG_STATUS, KZ_STATUS_RESETTING, 0, Deadline(deadline.left()));
}

// The reset has begun and ended once the device counts it.
void TpuDevice::await_reset_count(uint32_t before, const Deadline& deadline) {
  uint32_t now = core_->transport->read32(KZ_REG_RESET_COUNT);
  for (; now == before || now == 0xffffffff; now = core_->transport->read32(KZ_REG_RESET_COUNT)) {
    if (deadline.passed())
      throw Error({now == before ? Errc::timeout : Errc::gone, "wait for",
                   register_name(KZ_REG_RESET_COUNT) + " of " + core_->transport->name(),
                   fmt::format("read {:#x}, the value before the reset, after {} of {}", now,
                               to_string(deadline.elapsed()), to_string(deadline.budget())),
                   "", 0});
    pause();
  }
}

void TpuDevice::bring_up(const Deadline& deadline) {
  Transport& t = *core_->transport;
  restore_config();
  await_registers(deadline);
  t.arm_interrupts();
  t.write32(KZ_REG_CTRL, KZ_CTRL_ENABLE);
  tpu::wait_register(t, KZ_REG_STATUS, KZ_STATUS_READY, KZ_STATUS_READY, Deadline(deadline.left()));
  core_->cleanup.refill();
  core_->admin = std::make_unique<Admin>(core_, caps_.limits.queues);
}

void TpuDevice::require_function_reset() {
  ConfigSpace& c = config();
  uint32_t at = express_capability(c);
  if (at == 0 || (c.read32(at + PCI_EXP_DEVCAP) & PCI_EXP_DEVCAP_FLR) == 0)
    throw Error({Errc::unsupported, "reset function of", identity_.uri, "the device does not declare FLR",
                 "use the device or firmware reset", 0});
}

// PCI Express r6.0, 6.6.2: stop the function, wait for what is under way, then FLR.
void TpuDevice::function_reset(const Deadline& deadline) {
  ConfigSpace& c = config();
  uint32_t at = express_capability(c);
  c.write16(PCI_COMMAND, static_cast<uint16_t>(c.read16(PCI_COMMAND) & ~PCI_COMMAND_MASTER));
  for (Deadline quiet(quiesce_budget);
       (c.read16(at + PCI_EXP_DEVSTA) & PCI_EXP_DEVSTA_TRPND) != 0 && !quiet.passed();)
    pause();
  c.write16(at + PCI_EXP_DEVCTL,
            static_cast<uint16_t>(c.read16(at + PCI_EXP_DEVCTL) | PCI_EXP_DEVCTL_BCR_FLR));
  await_config(deadline);
}

void TpuDevice::reset(ResetKind kind, Deadline deadline) {
  Transport& t = *core_->transport;
  if (kind == ResetKind::function) require_function_reset();  // before anything is lost
  uint32_t before = t.read32(KZ_REG_RESET_COUNT);
  let_go();
  switch (kind) {
    case ResetKind::function:
      function_reset(deadline);
      break;
    case ResetKind::device:
      t.device_reset(std::max<std::chrono::nanoseconds>(deadline.left(), 1ms));
      await_config(deadline);
      break;
    case ResetKind::firmware:
      t.write32(KZ_REG_RESET, KZ_RESET_FIRMWARE);
      break;
  }
  restore_config();
  await_registers(deadline);
  if (before != 0xffffffff) await_reset_count(before, deadline);
  bring_up(deadline);
}

void TpuDevice::recover(Deadline deadline) {
  let_go();
  await_config(deadline);
  restore_config();
  await_registers(deadline);
  core_->transport->write32(KZ_REG_CTRL, 0);
  bring_up(deadline);
}

}  // namespace kz::tpu
