// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/registers.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::tpu {
namespace {

struct Name {
  uint32_t offset;
  const char* name;
};

constexpr Name globals[] = {
    {KZ_REG_MAGIC, "MAGIC"},
    {KZ_REG_ABI, "ABI"},
    {KZ_REG_CAP, "CAP"},
    {KZ_REG_FEAT, "FEAT"},
    {KZ_REG_HBM_SIZE_LO, "HBM_SIZE_LO"},
    {KZ_REG_HBM_SIZE_HI, "HBM_SIZE_HI"},
    {KZ_REG_HBM_PAGE, "HBM_PAGE"},
    {KZ_REG_HBM_GEOM, "HBM_GEOM"},
    {KZ_REG_MAX_XFER_LO, "MAX_XFER_LO"},
    {KZ_REG_MAX_XFER_HI, "MAX_XFER_HI"},
    {KZ_REG_MAX_DIM, "MAX_DIM"},
    {KZ_REG_DTYPES, "DTYPES"},
    {KZ_REG_CTRL, "CTRL"},
    {KZ_REG_STATUS, "STATUS"},
    {KZ_REG_RESET, "RESET"},
    {KZ_REG_RESET_COUNT, "RESET_COUNT"},
    {KZ_REG_RESET_REASON, "RESET_REASON"},
    {KZ_REG_FW_VERSION, "FW_VERSION"},
    {KZ_REG_WATCHDOG_MS, "WATCHDOG_MS"},
    {KZ_REG_SCRATCH, "SCRATCH"},
    {KZ_REG_TIME_LO, "TIME_LO"},
    {KZ_REG_TIME_HI, "TIME_HI"},
    {KZ_REG_HEARTBEAT, "HEARTBEAT"},
    {KZ_REG_IRQ_MASK, "IRQ_MASK"},
};
constexpr Name of_queue[] = {
    {KZ_Q_CTRL, "CTRL"},         {KZ_Q_STATE, "STATE"},       {KZ_Q_SQ_LO, "SQ_LO"},
    {KZ_Q_SQ_HI, "SQ_HI"},       {KZ_Q_CQ_LO, "CQ_LO"},       {KZ_Q_CQ_HI, "CQ_HI"},
    {KZ_Q_DBREC_LO, "DBREC_LO"}, {KZ_Q_DBREC_HI, "DBREC_HI"}, {KZ_Q_ORDER, "ORDER"},
    {KZ_Q_VECTOR, "VECTOR"},     {KZ_Q_CONTEXT, "CONTEXT"},   {KZ_Q_SQ_HEAD, "SQ_HEAD"},
    {KZ_Q_CQ_TAIL, "CQ_TAIL"},
};

}  // namespace

std::string register_name(uint32_t offset) {
  for (const Name& n : globals)
    if (n.offset == offset) return fmt::format("{} ({:#06x})", n.name, offset);
  if (offset >= KZ_REG_QUEUE(0) && offset < KZ_REG_TELEMETRY) {
    uint32_t queue = (offset - KZ_REG_QUEUE(0)) / 0x40;
    for (const Name& n : of_queue)
      if (KZ_REG_QUEUE(queue) + n.offset == offset)
        return fmt::format("Q{}.{} ({:#06x})", queue, n.name, offset);
  }
  if (offset >= KZ_REG_TELEMETRY && offset < KZ_REG_TELEMETRY + sizeof(kz_telemetry))
    return fmt::format("TELEMETRY+{:#x} ({:#06x})", offset - KZ_REG_TELEMETRY, offset);
  if (offset >= KZ_REG_NUMERIC(0) && offset <= KZ_REG_NUMERIC(3) && offset % 4 == 0)
    return fmt::format("NUMERIC{} ({:#06x})", (offset - KZ_REG_NUMERIC(0)) / 4, offset);
  if (offset >= KZ_REG_DOORBELL(0) && offset <= KZ_REG_DOORBELL(0xff) && offset % 8 == 0)
    return fmt::format("DOORBELL{} ({:#06x})", (offset - KZ_REG_DOORBELL(0)) / 8, offset);
  return fmt::format("register {:#06x}", offset);
}

void wait_register(Transport& transport, uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) {
  wait_register([&] { return transport.read32(offset); }, transport.name(), offset, mask, want, deadline);
}

void wait_register(const std::function<uint32_t()>& read, const std::string& device, uint32_t offset, uint32_t mask,
                   uint32_t want, Deadline deadline) {
  uint32_t value = 0;
  for (int pause_us = 20;; pause_us = std::min(pause_us * 2, 2000)) {
    value = read();
    // All ones is how a lost device answers; only a mask that asks for all ones may match it.
    if ((value & mask) == want && (value != 0xffffffff || want == 0xffffffff)) return;
    if (deadline.passed()) break;
    timespec ts{0, pause_us * 1000};
    ::ppoll(nullptr, 0, &ts, nullptr);
  }
  std::string seen = fmt::format("read {:#x}, want {:#x} in mask {:#x}, after {} of {}", value, want, mask,
                                 to_string(deadline.elapsed()), to_string(deadline.budget()));
  bool lost = value == 0xffffffff;
  throw Error({lost ? Errc::gone : Errc::timeout, "wait for",
               register_name(offset) + " of " + device,
               lost ? seen + " (registers read all ones)" : seen, "", 0});
}

void check_identity(Transport& t) {
  uint32_t magic = t.read32(KZ_REG_MAGIC);
  if (magic == 0xffffffff)
    throw Error({Errc::gone, "identify", t.name(), "registers read all ones",
                 "check power and link of the device", 0});
  if (magic != KZ_MAGIC)
    throw Error({Errc::protocol, "identify", t.name(),
                 fmt::format("{} reads {:#x}, a reference TPU has {:#x}", register_name(KZ_REG_MAGIC), magic,
                             KZ_MAGIC),
                 "is it the reference TPU?", 0});
  uint32_t abi = t.read32(KZ_REG_ABI);
  if (abi >> 16 != KZ_ABI_MAJOR)
    throw Error({Errc::unsupported, "identify", t.name(),
                 fmt::format("ABI {}.{}, this program knows {}.x", abi >> 16, abi & 0xffff, KZ_ABI_MAJOR),
                 "use a firmware and a program of the same ABI", 0});
}

}  // namespace kz::tpu
