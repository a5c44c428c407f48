// SPDX-License-Identifier: GPL-2.0-or-later
// Opening, objects and telemetry of the device; bring-up and resets are in device_reset.cc.
#include "shim/tpu/device.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include "shim/base/error.h"
#include "shim/tpu/admin.h"
#include "shim/tpu/context.h"
#include "shim/tpu/hbm.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::tpu {
namespace {

constexpr auto bring_up_margin = 1s;  // beyond the time that the device promises
constexpr auto consistent_copy = 100ms;

}  // namespace

TpuDevice::TpuDevice(std::unique_ptr<Transport> transport, Identity identity, bool up)
    : identity_(std::move(identity)) {
  core_ = std::make_shared<Core>(std::move(transport));
  root_ = std::make_unique<TpuContext>(core_, 0);
  enable_memory();
  check_identity(*core_->transport);
  caps_ = read_capabilities(*core_->transport);
  core_->pool.limit(caps_.limits.iova_bits);
  core_->numbers.limit(caps_.limits.queues);
  core_->hbm_page = caps_.limits.hbm_page;
  core_->max_order = KZ_CAP_MAX_ORDER(core_->transport->read32(KZ_REG_CAP));
  save_config();
  if (up) bring_up(Deadline(caps_.limits.ready_timeout + bring_up_margin));
}

TpuDevice::~TpuDevice() {
  ++core_->generation;
  bool was_up = core_->admin != nullptr;
  core_->admin.reset();
  core_->cleanup.run([&](std::chrono::nanoseconds budget) {
    Transport& t = *core_->transport;
    if (!t.glance(KZ_REG_MAGIC, budget)) return;
    if (was_up) t.write32(KZ_REG_CTRL, 0);
    if (!was_up && memory_was_off_)
      t.config().write16(PCI_COMMAND,
                         static_cast<uint16_t>(t.config().read16(PCI_COMMAND) & ~PCI_COMMAND_MEMORY));
  });
  core_->transport->close();
}

// Registers answer only while memory decoding is on (PCI Express r6.0, 7.5.1.1.3).
void TpuDevice::enable_memory() {
  ConfigSpace& c = config();
  uint16_t command = c.read16(PCI_COMMAND);
  if ((command & PCI_COMMAND_MEMORY) != 0) return;
  memory_was_off_ = true;
  c.write16(PCI_COMMAND, static_cast<uint16_t>(command | PCI_COMMAND_MEMORY));
}

void TpuDevice::wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) {
  tpu::wait_register(*core_->transport, offset, mask, want, deadline);
}

// A torn copy shows as an odd or changed sequence; after the deadline it is given as it is.
Telemetry TpuDevice::telemetry() {
  kz_telemetry block;
  auto bytes = std::as_writable_bytes(std::span(&block, 1));
  for (Deadline deadline(consistent_copy);;) {
    core_->transport->read_block(KZ_REG_TELEMETRY, bytes);
    if (block.seq == 0xffffffff || deadline.passed()) break;
    if (block.seq % 2 == 0 && core_->transport->read32(KZ_REG_TELEMETRY) == block.seq) break;
  }
  return decode_telemetry(bytes);
}

std::shared_ptr<DmaBuffer> TpuDevice::dma_buffer(const DmaSpec& spec) {
  return std::make_shared<DmaMemory>(core_, spec);
}

std::unique_ptr<Context> TpuDevice::create_context() {
  kz_cmd c{};
  c.opcode = KZ_OP_CTX_CREATE;
  Completion done = manage(*core_, c, "create", "a context");
  if (done.status == Status::ok)
    return std::make_unique<TpuContext>(core_, static_cast<uint32_t>(done.result));
  bool full = done.status == Status::no_context || done.status == Status::no_memory;
  throw Error({full ? Errc::no_memory : Errc::status, "create", "a context on " + identity_.uri,
               fmt::format("the device ended it with {}", to_string(done.status)), "", 0});
}

HbmAddr TpuDevice::physical(const Context& context, HbmAddr addr) {
  std::string target = fmt::format("HBM address {:#x} of context {}", addr.value, context.id());
  Completion done = manage(*core_, hbm_command(KZ_OP_HBM_QUERY, context.id(), addr, 0), "translate", target);
  if (done.status == Status::ok) return {done.result};
  throw Error({Errc::status, "translate", target,
               fmt::format("the device ended it with {}", to_string(done.status)), "", 0});
}

}  // namespace kz::tpu
