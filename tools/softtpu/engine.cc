// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/engine.h"

#include <algorithm>

#include "tools/softtpu/compute.h"
#include "tools/softtpu/engine_impl.h"

namespace kz::softtpu {

namespace {

BusyMeter::Kind kind_of(uint8_t opcode) {
  switch (opcode) {
    case KZ_OP_MATMUL:
    case KZ_OP_VECTOR:
      return BusyMeter::compute;
    case KZ_OP_COPY:
    case KZ_OP_FILL:
    case KZ_OP_CRC32C:
    case KZ_OP_MARCH:
      return BusyMeter::dma;
    default:
      return BusyMeter::other;
  }
}

Outcome dispatch(Core& core, const kz_cmd& cmd, const Requester& who) {
  if (uint16_t s = check_header(core, cmd, who); s != KZ_ST_OK) return ended(s);
  switch (cmd.opcode) {
    case KZ_OP_COPY:
      return exec_copy(core, cmd, who);
    case KZ_OP_FILL:
      return exec_fill(core, cmd, who);
    case KZ_OP_CRC32C:
      return exec_crc(core, cmd, who);
    case KZ_OP_MARCH:
      return exec_march(core, cmd, who);
    case KZ_OP_MATMUL:
      return exec_matmul(core, cmd, who);
    case KZ_OP_VECTOR:
      return exec_vector(core, cmd, who);
    case KZ_OP_TIMESTAMP:
      return ended(KZ_ST_OK, core.device_ns());
    case KZ_OP_CTX_CREATE:
    case KZ_OP_CTX_DESTROY:
      return exec_context(core, cmd, who);
    case KZ_OP_HBM_ALLOC:
    case KZ_OP_HBM_FREE:
    case KZ_OP_HBM_QUERY:
    case KZ_OP_HBM_STAT:
      return exec_memory(core, cmd, who);
    case KZ_OP_FW_UPDATE:
      return exec_fw_update(core, cmd, who);
    case KZ_OP_ECC_INJECT:
      return exec_ecc_inject(core, cmd, who);
    default:
      return ended(KZ_ST_OK);  // NOP
  }
}

bool zero_size(const kz_cmd& cmd) {
  switch (cmd.opcode) {
    case KZ_OP_COPY:
    case KZ_OP_FW_UPDATE:
      return cmd.u.copy.len == 0;
    case KZ_OP_FILL:
      return cmd.u.fill.len == 0;
    case KZ_OP_CRC32C:
      return cmd.u.crc.len == 0;
    case KZ_OP_MARCH:
      return cmd.u.march.len == 0;
    case KZ_OP_HBM_ALLOC:
      return cmd.u.alloc.len == 0;
    case KZ_OP_VECTOR:
      return cmd.u.vector.n == 0;
    case KZ_OP_MATMUL:
      return cmd.u.matmul.m == 0 || cmd.u.matmul.n == 0 || cmd.u.matmul.k == 0;
    default:
      return false;
  }
}

// F02, F03: the firmware's own checks are broken. F08: what an update left behind. F17: a rare pause.
void strike_firmware(Core& core, const kz_cmd& cmd, const Requester& who, Outcome& o) {
  bool malformed = o.status >= KZ_ST_BAD_OPCODE && o.status <= KZ_ST_MISALIGNED;
  if (malformed && core.faults.due(Row::F02) != nullptr) o.kind = Outcome::Kind::crash;
  if (o.status == KZ_ST_BAD_LENGTH && zero_size(cmd) && core.faults.due(Row::F03) != nullptr)
    o.kind = Outcome::Kind::hang;
  if (const Fault* f = core.faults.due(Row::F17))
    stall(std::chrono::microseconds(f->uparam("spike_us")), who);
  uint64_t bit = uint64_t{1} << (who.queue % 64);
  if ((core.broken_by_update.load(std::memory_order_relaxed) & bit) != 0) {
    core.broken_by_update &= ~bit;
    if (core.faults.active(Row::F08) != nullptr) o.kind = Outcome::Kind::hang;
  }
}

}  // namespace

Engine::Engine(const EngineOptions& options, FaultBoard& faults, HostBus& bus)
    : impl_(std::make_unique<Impl>(options, faults, bus)) {
  // Held while the callback runs, so that destruction waits for it.
  struct Link {
    std::mutex mutex;
    Core* core;
  };
  auto link = std::make_shared<Link>();
  link->core = &impl_->core;
  impl_->unlink = [link] {
    std::lock_guard lock(link->mutex);
    link->core = nullptr;
  };
  faults.on_change([link] {
    std::lock_guard lock(link->mutex);
    if (link->core != nullptr) link->core->hbm.rebuild_cells();
  });
  impl_->core.hbm.rebuild_cells();
  impl_->refresh_block();
}

Engine::~Engine() { impl_->unlink(); }

Outcome Engine::execute(const kz_cmd& command, const Requester& who) {
  Core& core = impl_->core;
  core.busy.begin(who.queue, kind_of(command.opcode));
  Outcome outcome;
  try {
    outcome = dispatch(core, command, who);
    if (core.faults.any()) strike_firmware(core, command, who, outcome);
  } catch (const std::exception&) {  // the host ran out of memory for staging
    outcome = ended(KZ_ST_INTERNAL);
  }
  core.busy.end(who.queue);
  core.commands.fetch_add(1, std::memory_order_relaxed);
  return outcome;
}

void Engine::on_context_gone(std::function<void(uint32_t context)> callback) {
  std::lock_guard lock(impl_->core.callback_mutex);
  impl_->core.context_gone = std::move(callback);
}

bool Engine::context_exists(uint32_t context) const { return impl_->core.memory.exists(context); }

void Engine::reset(uint32_t reason) {
  Core& core = impl_->core;
  const Fault* kept = core.faults.due(Row::F06);
  core.memory.reset(kept != nullptr && kept->uparam("what") == 1,
                    kept != nullptr && kept->uparam("what") == 0);
  core.broken_by_update = 0;
  core.fw.updating = false;
  uint32_t pending = reason == KZ_RR_FIRMWARE ? core.fw.pending.exchange(0) : 0;
  if (pending != 0) core.fw.version = pending;
  core.fw.fatal = false;
  core.fw.fatal_reason = 0;
  core.fw.reason = reason;
  ++core.fw.resets;
  core.thermal.set_brownout(false);
  impl_->refresh_block();
}

void Engine::power_on() { reset(KZ_RR_FLR); }

double Engine::slowdown() {
  double factor = impl_->core.thermal.stretch();
  if (const Fault* f = impl_->core.faults.active(Row::F16)) {
    std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - f->planted;
    // A job four times slower is beyond any creep; without a bound it would end as a hang.
    factor *= std::min(5.0, 1 + minutes.count() * f->param("accel") * f->param("percent") / 100);
  }
  return factor;
}

uint64_t Engine::device_ns() const { return impl_->core.device_ns(); }
uint32_t Engine::heartbeat() const { return impl_->core.fw.heartbeat; }

uint32_t Engine::fw_version() const {
  if (const Fault* f = impl_->core.faults.active(Row::F07))
    return KZ_FW_VERSION(static_cast<uint32_t>(f->uparam("major")), static_cast<uint32_t>(f->uparam("minor")),
                         0u);
  return impl_->core.fw.version;
}

bool Engine::fw_pending() const { return impl_->core.fw.pending != 0; }
bool Engine::fatal() const { return impl_->core.fw.fatal; }
uint32_t Engine::fatal_reason() const { return impl_->core.fw.fatal_reason; }
uint32_t Engine::reset_count() const { return impl_->core.fw.resets; }
uint32_t Engine::reset_reason() const { return impl_->core.fw.reason; }

void Engine::set_fatal(uint32_t reason) {
  impl_->core.fw.fatal_reason = reason;
  impl_->core.fw.fatal = true;
}

std::optional<uint32_t> Engine::describe(uint32_t reg) const {
  const Core& core = impl_->core;
  const bool ecc = core.options.ecc;
  switch (reg) {
    case KZ_REG_FEAT:
      return KZ_FEAT_CONTEXTS | KZ_FEAT_MARCH | KZ_FEAT_CRC32C | KZ_FEAT_VECTOR | KZ_FEAT_FW_UPDATE |
             KZ_FEAT_HBM_CLEARED | (ecc ? KZ_FEAT_ECC | KZ_FEAT_ECC_INJECT : 0);
    case KZ_REG_HBM_SIZE_LO:
      return static_cast<uint32_t>(core.hbm.size());
    case KZ_REG_HBM_SIZE_HI:
      return static_cast<uint32_t>(core.hbm.size() >> 32);
    case KZ_REG_HBM_PAGE:
      return static_cast<uint32_t>(Hbm::page);
    case KZ_REG_HBM_GEOM:
      return core.hbm.geometry();
    case KZ_REG_MAX_XFER_LO:
      return static_cast<uint32_t>(Core::max_transfer);
    case KZ_REG_MAX_XFER_HI:
      return static_cast<uint32_t>(Core::max_transfer >> 32);
    case KZ_REG_MAX_DIM:
      return Core::max_dim;
    case KZ_REG_DTYPES:
      return 1u << KZ_DT_S8 | 1u << KZ_DT_BF16 | 1u << KZ_DT_F16 | 1u << KZ_DT_F32;
    case KZ_REG_NUMERIC(0):
    case KZ_REG_NUMERIC(1):
    case KZ_REG_NUMERIC(2):
    case KZ_REG_NUMERIC(3):
      return numeric_contract(static_cast<uint8_t>((reg - KZ_REG_NUMERIC(0)) / 4));
    default:
      return std::nullopt;
  }
}

int Engine::hbm_fd() const { return impl_->core.hbm.fd(); }

std::vector<Engine::Range> Engine::direct_ranges() const {
  std::vector<Range> out;
  for (auto [offset, size] : impl_->core.hbm.direct_ranges()) out.push_back({offset, size});
  return out;
}

void Engine::aperture_read(uint64_t offset, std::span<std::byte> out) {
  Hbm& hbm = impl_->core.hbm;
  bool inside = offset < hbm.size() && out.size() <= hbm.size() - offset;
  // Out of range and poisoned data both end as an aborted read: all ones.
  if (!inside || !hbm.read(offset, out)) std::fill(out.begin(), out.end(), std::byte{0xff});
}

void Engine::aperture_write(uint64_t offset, std::span<const std::byte> in) {
  Hbm& hbm = impl_->core.hbm;
  if (offset < hbm.size() && in.size() <= hbm.size() - offset) hbm.write(offset, in);
}

}  // namespace kz::softtpu
