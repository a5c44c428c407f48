// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/device.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <cstring>

#include "shim/base/error.h"
#include "shim/tpu/context.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::tpu {
namespace {

constexpr auto admin_budget = 5s;
constexpr unsigned admin_order = 5;

uint64_t read64(Transport &t, uint32_t lo) {
  uint64_t low = t.read32(lo);
  return low | static_cast<uint64_t>(t.read32(lo + 4)) << 32;
}

void check_identity(Transport &t) {
  uint32_t magic = t.read32(KZ_REG_MAGIC);
  if (magic == 0xffffffff)
    throw Error({Errc::gone, "identify", t.name(), "registers read all ones",
                 "check power and link of the device", 0});
  if (magic != KZ_MAGIC)
    throw Error({Errc::protocol, "identify", t.name(),
                 fmt::format("MAGIC reads {:#x}, a reference TPU has {:#x}",
                             magic, KZ_MAGIC),
                 "", 0});
  uint32_t abi = t.read32(KZ_REG_ABI);
  if (abi >> 16 != KZ_ABI_MAJOR)
    throw Error({Errc::protocol, "identify", t.name(),
                 fmt::format("ABI {}.{}, this program knows {}.x", abi >> 16,
                             abi & 0xffff, KZ_ABI_MAJOR),
                 "", 0});
}

} // namespace

TpuDevice::TpuDevice(std::unique_ptr<Transport> transport, Identity identity,
                     bool up)
    : identity_(std::move(identity)) {
  // Registers answer only while memory decoding is on (PCI Express r6.0, 7.5.1.1.3).
  ConfigSpace& c = transport->config();
  c.write16(PCI_COMMAND, static_cast<uint16_t>(c.read16(PCI_COMMAND) | PCI_COMMAND_MEMORY));
  check_identity(*transport);
  unsigned bits = KZ_CAP_IOVA_BITS(transport->read32(KZ_REG_CAP));
  core_ = std::make_shared<Core>(std::move(transport), bits == 0 ? 64 : bits);
  read_limits();
  root_ = std::make_unique<TpuContext>(*this, 0);
  save_config();
  if (up)
    bring_up(Deadline(
        std::max<std::chrono::nanoseconds>(caps_.limits.ready_timeout, 1s)));
}

TpuDevice::~TpuDevice() {
  root_.reset();
  admin_.reset();
  if (core_->wedged || !core_->transport->alive())
    return;
  try {
    core_->transport->write32(KZ_REG_CTRL, 0);
  } catch (const Error &) {
  }
}

void TpuDevice::read_limits() {
  Transport &t = *core_->transport;
  Limits &l = caps_.limits;
  uint32_t cap = t.read32(KZ_REG_CAP), feat = t.read32(KZ_REG_FEAT),
           types = t.read32(KZ_REG_DTYPES);
  l.hbm_bytes = read64(t, KZ_REG_HBM_SIZE_LO);
  l.hbm_page = t.read32(KZ_REG_HBM_PAGE);
  l.hbm_geometry = t.read32(KZ_REG_HBM_GEOM);
  l.max_transfer = read64(t, KZ_REG_MAX_XFER_LO);
  l.max_dim = t.read32(KZ_REG_MAX_DIM);
  l.queues = static_cast<uint16_t>(KZ_CAP_QUEUES(cap));
  l.max_depth = 1u << KZ_CAP_MAX_ORDER(cap);
  l.vectors = static_cast<uint16_t>(t.vectors());
  l.iova_bits = KZ_CAP_IOVA_BITS(cap);
  l.ready_timeout = std::chrono::milliseconds(100) * KZ_CAP_READY_100MS(cap);
  l.hbm_cleared = (feat & KZ_FEAT_HBM_CLEARED) != 0;
  for (uint32_t d = 0; d < l.numeric.size(); ++d)
    l.numeric[d] = t.read32(KZ_REG_NUMERIC(d));

  caps_.have = {Cap::config_read,  Cap::config_write,  Cap::config_extended,
                Cap::registers,    Cap::telemetry,     Cap::firmware_version,
                Cap::heartbeat,    Cap::interrupts,    Cap::queues,
                Cap::dma,          Cap::dma_sg,        Cap::raw_commands,
                Cap::abort,        Cap::timestamp,     Cap::fence,
                Cap::hbm_alloc,    Cap::hbm_physical,  Cap::aperture,
                Cap::watchdog,     Cap::reset_queue,   Cap::reset_function,
                Cap::reset_device, Cap::reset_firmware};
  auto from = [&](uint32_t bits, uint32_t bit, Cap c, const char *reg) {
    if ((bits & bit) != 0)
      caps_.have.insert(c);
    else
      caps_.why_not[c] =
          fmt::format("the device does not declare it in {}", reg);
  };
  from(feat, KZ_FEAT_CONTEXTS, Cap::contexts, "FEAT");
  from(feat, KZ_FEAT_MARCH, Cap::march, "FEAT");
  from(feat, KZ_FEAT_CRC32C, Cap::crc32c, "FEAT");
  from(feat, KZ_FEAT_VECTOR, Cap::vector, "FEAT");
  from(feat, KZ_FEAT_FW_UPDATE, Cap::fw_update, "FEAT");
  from(feat, KZ_FEAT_ECC, Cap::ecc, "FEAT");
  from(feat, KZ_FEAT_ECC_INJECT, Cap::ecc_inject, "FEAT");
  constexpr Cap matmul[] = {Cap::matmul_s8, Cap::matmul_bf16, Cap::matmul_f16,
                            Cap::matmul_f32};
  for (uint32_t d = 0; d < 4; ++d)
    from(types, 1u << d, matmul[d], "DTYPES");
  const char *no_kernel = "reached from user space, past the kernel's drivers";
  caps_.why_not[Cap::sysfs] = no_kernel;
  caps_.why_not[Cap::node] = no_kernel;
}

// What a function or bus reset clears and its user restores: header BARs,
// command, and the writable halves of the capabilities (PCI Express r6.0, 6.6.2
// and 6.6.1.1).
void TpuDevice::save_config() {
  ConfigSpace &c = config();
  saved_config_.clear();
  for (uint32_t bar = PCI_BASE_ADDRESS_0; bar <= PCI_BASE_ADDRESS_5; bar += 4)
    saved_config_.emplace_back(bar, c.read32(bar));
  for (const PciCapability &cap : walk_capabilities(c).found) {
    if (cap.extended || cap.id != PCI_CAP_ID_EXP)
      continue;
    saved_config_.emplace_back(cap.offset + PCI_EXP_DEVCTL,
                               c.read16(cap.offset + PCI_EXP_DEVCTL));
  }
}

void TpuDevice::restore_config() {
  ConfigSpace &c = config();
  for (auto [offset, value] : saved_config_) {
    if (offset <= PCI_BASE_ADDRESS_5)
      c.write32(offset, value);
    else
      c.write16(offset, static_cast<uint16_t>(
                            value & ~uint32_t{PCI_EXP_DEVCTL_BCR_FLR}));
  }
}

void TpuDevice::bring_up(Deadline deadline) {
  Transport &t = *core_->transport;
  uint16_t command = t.config().read16(PCI_COMMAND);
  t.config().write16(
      PCI_COMMAND,
      static_cast<uint16_t>(command | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER));
  tpu::wait_register(t, KZ_REG_STATUS, KZ_STATUS_RESETTING, 0, deadline);
  check_identity(t);
  t.arm_interrupts();
  t.write32(KZ_REG_CTRL, KZ_CTRL_ENABLE);
  tpu::wait_register(t, KZ_REG_STATUS, KZ_STATUS_READY, KZ_STATUS_READY,
                     deadline);
  core_->wedged = false;
  std::lock_guard lock(queue_mutex_);
  queues_in_use_.insert(0);
  admin_ = std::make_unique<TpuQueue>(core_, 0, 0,
                                      QueueSpec{.order = admin_order}, nullptr);
}

void TpuDevice::wait_register(uint32_t offset, uint32_t mask, uint32_t want,
                              Deadline deadline) {
  tpu::wait_register(*core_->transport, offset, mask, want, deadline);
}

// FLR: the function may answer nothing for up to 100 ms (PCI Express
// r6.0, 6.6.2); here config space tells when it is back.
void TpuDevice::function_reset(Deadline deadline) {
  ConfigSpace &c = config();
  for (const PciCapability &cap : walk_capabilities(c).found) {
    if (cap.extended || cap.id != PCI_CAP_ID_EXP)
      continue;
    if ((c.read32(cap.offset + PCI_EXP_DEVCAP) & PCI_EXP_DEVCAP_FLR) == 0)
      break;
    uint16_t control = c.read16(cap.offset + PCI_EXP_DEVCTL);
    c.write16(cap.offset + PCI_EXP_DEVCTL,
              static_cast<uint16_t>(control | PCI_EXP_DEVCTL_BCR_FLR));
    while (c.read16(PCI_VENDOR_ID) == 0xffff)
      if (deadline.passed())
        throw Error({Errc::timeout, "wait for config space after FLR of",
                     identity_.uri, "vendor id reads all ones", "", 0});
    return;
  }
  throw Error({Errc::unsupported, "reset function of", identity_.uri,
               "the device does not declare FLR", "", 0});
}

void TpuDevice::reset(ResetKind kind, Deadline deadline) {
  Transport &t = *core_->transport;
  ++core_->generation; // from here on nothing that was open touches the device
  {
    std::lock_guard lock(queue_mutex_);
    admin_.reset();
  }
  switch (kind) {
  case ResetKind::function:
    function_reset(deadline);
    break;
  case ResetKind::device:
    t.device_reset(deadline.left());
    break;
  case ResetKind::firmware:
    t.write32(KZ_REG_RESET, KZ_RESET_FIRMWARE);
    break;
  }
  restore_config();
  bring_up(deadline);
}

void TpuDevice::recover(Deadline deadline) {
  ++core_->generation;
  {
    std::lock_guard lock(queue_mutex_);
    admin_.reset();
  }
  restore_config();
  core_->transport->write32(KZ_REG_CTRL, 0);
  bring_up(deadline);
}

Telemetry TpuDevice::telemetry() {
  kz_telemetry block;
  auto bytes = std::as_writable_bytes(std::span(&block, 1));
  Deadline deadline(100ms);
  // A torn copy shows as an odd or changed sequence; after the deadline it is
  // given as it is.
  for (;;) {
    core_->transport->read_block(KZ_REG_TELEMETRY, bytes);
    uint32_t again = core_->transport->read32(KZ_REG_TELEMETRY);
    if ((block.seq % 2 == 0 && again == block.seq) || block.seq == 0xffffffff ||
        deadline.passed())
      break;
  }
  return decode_telemetry(bytes);
}

std::shared_ptr<DmaBuffer> TpuDevice::dma_buffer(const DmaSpec &spec) {
  return std::make_shared<DmaMemory>(core_, spec);
}

Completion TpuDevice::admin(const kz_cmd &command, const char *what) {
  if (admin_ == nullptr)
    throw Error({Errc::gone, what, identity_.uri,
                 "the device was not brought up", "", 0});
  try {
    return run(*admin_, {cmd::Raw{command}}, admin_budget);
  } catch (const Error &e) {
    if (e.code() != Errc::timeout)
      throw;
    core_->wedged = true; // whatever holds on to it must not wait again
    throw Error({Errc::timeout, what, identity_.uri, e.info().detail,
                 e.info().remedy, 0});
  }
}

std::unique_ptr<Context> TpuDevice::create_context() {
  kz_cmd c{};
  c.opcode = KZ_OP_CTX_CREATE;
  Completion done = admin(c, "create context");
  if (done.status != Status::ok)
    throw Error(
        {done.status == Status::no_context ? Errc::no_memory : Errc::status,
         "create context on", identity_.uri,
         std::string(to_string(done.status)), "", 0});
  return std::make_unique<TpuContext>(*this,
                                      static_cast<uint32_t>(done.result));
}

HbmAddr TpuDevice::physical(const Context &context, HbmAddr addr) {
  kz_cmd c{};
  c.opcode = KZ_OP_HBM_QUERY;
  c.u.alloc.addr = addr.value;
  c.u.alloc.ctx = context.id();
  Completion done = admin(c, "translate HBM address");
  if (done.status != Status::ok)
    throw Error({Errc::status, "translate",
                 fmt::format("HBM address {:#x} of context {}", addr.value,
                             context.id()),
                 std::string(to_string(done.status)), "", 0});
  return {done.result};
}

std::unique_ptr<Queue> TpuDevice::open_queue(uint32_t context,
                                             const QueueSpec &spec) {
  if (spec.order < 1 || (1u << spec.order) > caps_.limits.max_depth)
    throw Error(
        {Errc::usage, "open queue", fmt::format("2^{} entries", spec.order),
         fmt::format("the device takes 2 to {}", caps_.limits.max_depth), "",
         0});
  uint16_t id = 1;
  {
    std::lock_guard lock(queue_mutex_);
    while (queues_in_use_.contains(id))
      ++id;
    if (id >= caps_.limits.queues)
      throw Error(
          {Errc::busy, "open queue", identity_.uri,
           fmt::format("all {} queue pairs are in use", caps_.limits.queues),
           "", 0});
    queues_in_use_.insert(id);
  }
  auto release = [this](uint16_t q) {
    std::lock_guard lock(queue_mutex_);
    queues_in_use_.erase(q);
  };
  try {
    return std::make_unique<TpuQueue>(core_, id, context, spec, release);
  } catch (...) {
    release(id);
    throw;
  }
}

} // namespace kz::tpu
