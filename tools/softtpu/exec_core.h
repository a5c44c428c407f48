// SPDX-License-Identifier: GPL-2.0-or-later
// What the parts of the engine share, and the commands, one function each.
//
// Checks come in this order: opcode, flags, reserved fields, privilege, field values, lengths, alignment,
// addresses; the first that fails gives the status. Nothing is written before all checks but those of the
// host's addresses are done.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <span>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/allocator.h"
#include "tools/softtpu/engine.h"
#include "tools/softtpu/hbm.h"
#include "tools/softtpu/thermal.h"

namespace kz::softtpu {

// How long each kind of engine worked. One slot a queue; begin and end by the queue's worker, sample by one
// other thread.
class BusyMeter {
 public:
  enum Kind { compute, dma, other, kinds };
  void begin(uint16_t queue, Kind kind);
  void end(uint16_t queue);
  // Nanoseconds of work of each kind since power-on, with what runs now.
  std::array<int64_t, kinds> sample() const;
  int running() const { return running_.load(std::memory_order_relaxed); }
  // The queue began a command within this time before now.
  bool recent(uint16_t queue, std::chrono::nanoseconds span) const;

  static constexpr size_t slots = 256;

 private:
  struct alignas(64) Slot {
    std::atomic<int64_t> since{0};  // 0: idle
    std::atomic<int64_t> last{0};
    std::atomic<int> kind{other};
    std::array<std::atomic<int64_t>, kinds> total{};
  };
  static int64_t now();
  std::array<Slot, slots> slots_;
  std::atomic<int> running_{0};
};

struct Firmware {
  std::atomic<uint32_t> version;
  std::atomic<uint32_t> pending{0};  // 0: no image waits
  std::atomic<bool> updating{false};
  std::atomic<bool> fatal{false};
  std::atomic<uint32_t> fatal_reason{0};
  std::atomic<uint32_t> resets{0}, reason{KZ_RR_POWER_ON};
  std::atomic<uint32_t> heartbeat{0};
};

struct Core {
  static constexpr uint64_t max_transfer = uint64_t{64} << 20;
  static constexpr uint32_t max_dim = 4096;
  static constexpr uint64_t chunk = uint64_t{1} << 20;

  Core(const EngineOptions& o, FaultBoard& f, HostBus& b);

  uint64_t device_ns() const;
  // A number that never repeats, for faults that strike at random places.
  uint64_t draw();
  // Counts HBM reads towards corrected errors (fault M23).
  void note_read(uint64_t bytes);

  const EngineOptions options;
  FaultBoard& faults;
  HostBus& bus;
  Hbm hbm;
  Allocator memory;
  Thermal thermal;
  BusyMeter busy;
  Firmware fw;
  const Clock::time_point power_on = Clock::now();
  std::atomic<uint64_t> commands{0}, dma_bytes{0}, read_bytes{0}, draws{0};
  std::atomic<uint64_t> broken_by_update{
      0};  // fault F08: bit per queue (modulo 64) whose next command never ends
  std::mutex stale_mutex;
  std::shared_ptr<void> stale;  // what fault D13 remembers
  std::mutex callback_mutex;
  std::function<void(uint32_t)> context_gone;
};

inline bool cancelled(const Requester& who) {
  return who.cancel != nullptr && who.cancel->load(std::memory_order_relaxed);
}
inline Outcome ended(uint16_t status, uint64_t result = 0) { return {.status = status, .result = result}; }
// Sleeps unless cancelled.
void stall(std::chrono::nanoseconds time, const Requester& who);

// All bytes zero, or fault Q15 of this kind (0 command header, 1 payload, 2 flags) lets it pass.
bool reserved_ok(Core& core, std::span<const uint8_t> bytes, unsigned where);
// Opcode known, flags, reserved fields, privilege.
uint16_t check_header(Core& core, const kz_cmd& cmd, const Requester& who);
// 1 .. max_transfer, else KZ_ST_BAD_LENGTH.
uint16_t check_length(uint64_t len);

// Bytes of a pinned range. KZ_ST_POISON for an uncorrectable error.
uint16_t hbm_read(Core& core, const Pinned& range, uint64_t offset, std::span<std::byte> out);
void hbm_write(Core& core, const Pinned& range, uint64_t offset, std::span<const std::byte> in);
// The range itself, where it is one run without defects; else null.
std::byte* hbm_direct(Core& core, const Pinned& range, uint64_t offset, uint64_t len);

Outcome exec_copy(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_fill(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_crc(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_march(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_matmul(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_vector(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_context(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_memory(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_fw_update(Core& core, const kz_cmd& cmd, const Requester& who);
Outcome exec_ecc_inject(Core& core, const kz_cmd& cmd, const Requester& who);

}  // namespace kz::softtpu
