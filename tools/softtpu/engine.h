// SPDX-License-Identifier: GPL-2.0-or-later
// The inside of the chip: HBM, contexts, command execution, compute, telemetry, firmware. It knows nothing of
// sockets, rings or PCI; the front (server, registers, queues) calls it and gives it the host's memory
// through HostBus.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_telemetry.h"
#include "tools/softtpu/fault_board.h"

namespace kz::softtpu {

// What the DMA engine sees of the host. Thread-safe. A false or null answer is a DMA fault.
class HostBus {
 public:
  virtual ~HostBus() = default;
  virtual bool read(uint64_t iova, std::span<std::byte> out) = 0;
  virtual bool write(uint64_t iova, std::span<const std::byte> in) = 0;
  // The bytes themselves where one shared mapping holds all of [iova, iova+len) with the permission; else
  // null and the caller uses read/write. Valid until `release` returns: the map is not torn down in between.
  virtual std::byte* acquire(uint64_t iova, uint64_t len, bool for_write) = 0;
  virtual void release() = 0;
  // Any mapped range, ignoring its permission and state: what a broken DMA engine would hit (faults D16,
  // D17).
  virtual std::byte* acquire_ignoring_rights(uint64_t iova, uint64_t len) = 0;
};

struct EngineOptions {
  uint64_t hbm_bytes = uint64_t{1} << 30;  // multiple of the 64 KiB page
  uint32_t geometry = KZ_GEOM_DEFAULT;
  bool ecc = true;
  uint64_t seed = 1;
  double ambient_celsius = 30;
  uint32_t fw_version = 0;  // 0: the known one
};

// Who runs a command.
struct Requester {
  uint16_t queue = 0;
  uint32_t context = 0;
  const std::atomic<bool>* cancel = nullptr;  // set: stop soon, the outcome is thrown away
};

struct Outcome {
  enum class Kind {
    done,    // write the completion
    silent,  // never complete (fault)
    hang,    // this queue's engine is stuck until reset (fault)
    crash,   // the firmware died: FATAL, nothing answers until reset (fault)
    twice,   // write the completion two times (fault)
    early,   // completion first, then call `finish` (data after completion, fault)
  } kind = Kind::done;
  uint16_t status = KZ_ST_OK;
  uint64_t result = 0;
  std::function<void()> finish;
  std::chrono::microseconds finish_delay{0};
};

class Engine {
 public:
  Engine(const EngineOptions& options, FaultBoard& faults, HostBus& bus);
  ~Engine();
  Engine(const Engine&) = delete;

  // Called by queue workers, several at once. Checks every field; never throws. ABORT and FENCE are the
  // front's.
  Outcome execute(const kz_cmd& command, const Requester& who);
  // Queues of the context must be stopped: called while a CTX_DESTROY runs.
  void on_context_gone(std::function<void(uint32_t context)> callback);
  bool context_exists(uint32_t context) const;

  // A function, device or firmware reset; all workers are stopped. Destroys contexts, clears HBM, keeps ECC
  // counters, retired pages, temperature and clock.
  void reset(uint32_t reason);
  // The client went away: as reset(KZ_RR_FLR), after which the device waits for the next one.
  void power_on();

  // Every 10 ms from the front's timer: heat, power, clock, heartbeat, telemetry.
  void tick();
  // From the control socket: the temperature of the room, and of the die at once (it relaxes from there).
  // Thread-safe.
  void set_ambient(double celsius);
  void set_temperature(double celsius);
  // A consistent copy of the block as a register reader would see it now (faults included).
  void read_telemetry(kz_telemetry& out);
  uint64_t device_ns() const;  // KZ_REG_TIME, faults included
  uint32_t heartbeat() const;
  uint32_t fw_version() const;
  bool fw_pending() const;
  bool fatal() const;  // firmware crashed or watchdog/thermal stop
  uint32_t fatal_reason() const;
  void set_fatal(uint32_t reason);
  // The supply broke down under load (fault F20): nothing answers, every read is all ones, until this is
  // false again. Then the device is fatal with KZ_RR_POWER_LOSS and waits for a reset.
  bool link_lost() const;
  uint32_t reset_count() const;
  uint32_t reset_reason() const;
  // Register values that describe the engine: KZ_REG_FEAT, DTYPES, NUMERIC, HBM_*, MAX_*; nullopt for others.
  std::optional<uint32_t> describe(uint32_t reg) const;
  // Multiplier on execution time for throttling and F16, >= 1: the front sleeps (factor - 1) x measured. F17
  // and D15 wait inside execute().
  double slowdown();

  // The aperture.
  int hbm_fd() const;
  struct Range {
    uint64_t offset, size;
  };
  std::vector<Range> direct_ranges() const;  // without the pages that have a cell fault
  void aperture_read(uint64_t offset, std::span<std::byte> out);
  void aperture_write(uint64_t offset, std::span<const std::byte> in);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kz::softtpu
