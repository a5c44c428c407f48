// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/exec_core.h"

#include <algorithm>
#include <cstddef>
#include <thread>

namespace kz::softtpu {

int64_t BusyMeter::now() { return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

void BusyMeter::begin(uint16_t queue, Kind kind) {
  Slot& s = slots_[queue % slots];
  int64_t t = now();
  s.kind.store(kind, std::memory_order_relaxed);
  s.last.store(t, std::memory_order_relaxed);
  s.since.store(t, std::memory_order_release);
  running_.fetch_add(1, std::memory_order_relaxed);
}

void BusyMeter::end(uint16_t queue) {
  Slot& s = slots_[queue % slots];
  int64_t since = s.since.exchange(0, std::memory_order_acq_rel);
  int kind = s.kind.load(std::memory_order_relaxed);
  if (since != 0) s.total[kind].fetch_add(now() - since, std::memory_order_relaxed);
  running_.fetch_sub(1, std::memory_order_relaxed);
}

std::array<int64_t, BusyMeter::kinds> BusyMeter::sample() const {
  std::array<int64_t, kinds> sum{};
  int64_t t = now();
  for (const Slot& s : slots_) {
    for (int k = 0; k < kinds; ++k) sum[k] += s.total[k].load(std::memory_order_relaxed);
    if (int64_t since = s.since.load(std::memory_order_acquire); since != 0 && since < t)
      sum[s.kind.load(std::memory_order_relaxed)] += t - since;
  }
  return sum;
}

bool BusyMeter::recent(uint16_t queue, std::chrono::nanoseconds span) const {
  int64_t last = slots_[queue % slots].last.load(std::memory_order_relaxed);
  return last != 0 && now() - last <= span.count();
}

static uint32_t known_version(uint32_t asked) {
  return asked != 0 ? asked : KZ_FW_VERSION(KZ_FW_KNOWN_MAJOR, KZ_FW_KNOWN_MINOR, 2);
}

Core::Core(const EngineOptions& o, FaultBoard& f, HostBus& b)
    : options(o),
      faults(f),
      bus(b),
      hbm(o.hbm_bytes, o.geometry, o.ecc, f),
      memory(hbm, f),
      thermal(o.ambient_celsius, f),
      fw{.version = known_version(o.fw_version)} {}

uint64_t Core::device_ns() const {
  auto real = static_cast<uint64_t>((Clock::now() - power_on) / std::chrono::nanoseconds(1));
  const Fault* f = faults.active(Row::F15);
  if (f == nullptr) return real;
  // Steps back at the end of each period: a counter that is reloaded with a stale value.
  uint64_t period = f->uparam("every_ms") * 1'000'000, back = f->uparam("back_us") * 1000;
  return real - std::min(real, real / period * back);
}

uint64_t Core::draw() {
  // splitmix64 (Steele, Lea, Flood 2014) over a counter.
  uint64_t z = options.seed + (draws.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void Core::note_read(uint64_t bytes) {
  const Fault* f = faults.active(Row::M23);
  if (f == nullptr || !hbm.ecc().enabled()) return;
  uint64_t unit = f->uparam("every_kib") * 1024,
           before = read_bytes.fetch_add(bytes, std::memory_order_relaxed);
  auto errors = static_cast<uint32_t>((before + bytes) / unit - before / unit);
  if (errors != 0 && faults.due(Row::M23) != nullptr)
    hbm.ecc().count_correctable(static_cast<uint32_t>(f->uparam("channel") % hbm.ecc().channels()), errors);
}

void stall(std::chrono::nanoseconds time, const Requester& who) {
  Deadline end(time);
  while (!end.passed() && !cancelled(who))
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(end.left(), std::chrono::milliseconds(1)));
}

bool reserved_ok(Core& core, std::span<const uint8_t> bytes, unsigned where) {
  if (std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; })) return true;
  const Fault* f = core.faults.active(Row::Q15);
  return f != nullptr && f->uparam("where") == where && core.faults.due(Row::Q15) != nullptr;
}

namespace {

struct OpSpec {
  uint8_t opcode;
  size_t reserved_from;  // first reserved byte of the payload
  bool privileged;
};
constexpr OpSpec ops[] = {
    {KZ_OP_NOP, 0, false},
    {KZ_OP_COPY, offsetof(kz_copy, rsvd), false},
    {KZ_OP_FILL, offsetof(kz_fill, rsvd), false},
    {KZ_OP_CRC32C, offsetof(kz_crc, rsvd), false},
    {KZ_OP_MARCH, offsetof(kz_march, rsvd), false},
    {KZ_OP_MATMUL, offsetof(kz_matmul, rsvd), false},
    {KZ_OP_VECTOR, offsetof(kz_vector, rsvd), false},
    {KZ_OP_TIMESTAMP, 0, false},
    {KZ_OP_CTX_CREATE, 0, true},
    {KZ_OP_CTX_DESTROY, offsetof(kz_ctx, rsvd), true},
    {KZ_OP_HBM_ALLOC, offsetof(kz_alloc, rsvd), false},
    {KZ_OP_HBM_FREE, offsetof(kz_alloc, rsvd), false},
    {KZ_OP_HBM_QUERY, offsetof(kz_alloc, rsvd), true},
    {KZ_OP_HBM_STAT, 0, false},
    {KZ_OP_FW_UPDATE, offsetof(kz_copy, rsvd), true},
    {KZ_OP_ECC_INJECT, offsetof(kz_ecc, rsvd), true},
};

}  // namespace

uint16_t check_header(Core& core, const kz_cmd& cmd, const Requester& who) {
  auto op =
      std::find_if(std::begin(ops), std::end(ops), [&](const OpSpec& o) { return o.opcode == cmd.opcode; });
  if (op == std::end(ops)) return KZ_ST_BAD_OPCODE;
  if (cmd.opcode == KZ_OP_ECC_INJECT && !core.hbm.ecc().enabled()) return KZ_ST_BAD_OPCODE;
  const uint8_t flags = cmd.flags & static_cast<uint8_t>(~KZ_CMD_FLAGS);
  if (!reserved_ok(core, {&flags, 1}, 2)) return KZ_ST_BAD_FIELD;
  if (!reserved_ok(core, {reinterpret_cast<const uint8_t*>(&cmd.rsvd), sizeof cmd.rsvd}, 0))
    return KZ_ST_BAD_FIELD;
  if (!reserved_ok(core, std::span(cmd.u.raw).subspan(op->reserved_from), 1)) return KZ_ST_BAD_FIELD;
  if (op->privileged && who.context != 0) return KZ_ST_DENIED;
  return KZ_ST_OK;
}

uint16_t check_length(uint64_t len) {
  return len >= 1 && len <= Core::max_transfer ? KZ_ST_OK : KZ_ST_BAD_LENGTH;
}

uint16_t hbm_read(Core& core, const Pinned& range, uint64_t offset, std::span<std::byte> out) {
  bool good = true;
  range.pieces(offset, out.size(), [&](uint64_t physical, uint64_t n, uint64_t done) {
    good &= core.hbm.read(physical, out.subspan(done, n));
  });
  core.note_read(out.size());
  return good ? KZ_ST_OK : KZ_ST_POISON;
}

void hbm_write(Core& core, const Pinned& range, uint64_t offset, std::span<const std::byte> in) {
  range.pieces(offset, in.size(), [&](uint64_t physical, uint64_t n, uint64_t done) {
    core.hbm.write(physical, in.subspan(done, n));
  });
}

std::byte* hbm_direct(Core& core, const Pinned& range, uint64_t offset, uint64_t len) {
  uint64_t at = 0;
  bool whole = false;
  range.pieces(offset, len, [&](uint64_t physical, uint64_t n, uint64_t done) {
    if (done == 0) at = physical;
    whole = done == 0 && n == len;
  });
  return whole ? core.hbm.direct(at, len) : nullptr;
}

}  // namespace kz::softtpu
