// SPDX-License-Identifier: GPL-2.0-or-later
// A device under test, whatever it is and however it is reached.
//
// Everything above this header sees only a Device and its capabilities; nothing above branches on the backend. A call
// that needs a missing capability throws Error(unsupported). Every call that can wait has a deadline. A Device is used
// from one thread, its queues from one thread each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shim/base/bdf.h"
#include "shim/base/units.h"
#include "shim/capability.h"
#include "shim/config_space.h"
#include "shim/queue.h"
#include "shim/telemetry.h"
#include "shim/uri.h"

namespace kz {

// What does not change, and how it was reached. Ordinals (kz0, card1) shuffle at resets and are not identity.
struct Identity {
  std::string uri;
  std::optional<Bdf> bdf;
  uint16_t vendor = 0, device = 0, subsystem_vendor = 0, subsystem = 0;
  uint32_t class_code = 0;  // 24 bits
  uint8_t revision = 0;
  std::string serial;       // DSN as xx-xx-xx-xx-xx-xx-xx-xx, else empty
  std::string driver;       // bound kernel driver, "" if none
  std::string name;         // "1234:4b5a reference TPU"
  std::string stable_id() const;  // serial, else slot and ids
};

// Host memory that the device can reach. Freed and unmapped with the last reference.
class DmaBuffer {
 public:
  virtual ~DmaBuffer() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual Iova iova() const = 0;
  // Unmaps it for the device while the host keeps it; afterwards the device must not reach it.
  virtual void unmap() = 0;
};

struct DmaSpec {
  Bytes size;
  bool device_reads = true;
  bool device_writes = true;
  // Reached by messages to us instead of shared memory: every access by the device is checked. vfio-user only;
  // elsewhere ignored.
  bool by_message = false;
  std::optional<Iova> at;  // exact address, for boundary tests
};

// Device memory. Freed with the object.
class HbmBlock {
 public:
  virtual ~HbmBlock() = default;
  virtual HbmAddr addr() const = 0;
  virtual uint64_t size() const = 0;  // rounded up to HBM pages
  // Frees now and returns how the device ended the free. The object is empty afterwards: again is Error(usage).
  virtual Status free() = 0;
};

// An isolated user of the device: its HBM and its queues. Destruction destroys them on the device.
class Context {
 public:
  virtual ~Context() = default;
  virtual uint32_t id() const = 0;
  virtual std::unique_ptr<Queue> open_queue(const QueueSpec& spec = {}) = 0;
  // Throws Error(no_memory) at once when there is not enough; Error(timeout) when the device does not answer.
  virtual std::unique_ptr<HbmBlock> alloc(Bytes size) = 0;
  // Raw allocation calls for tests of the allocator: no bookkeeping, the device's own status.
  virtual Status free_raw(HbmAddr addr) = 0;
};

// HBM as the host sees it through the BAR. `bytes` is what is mapped directly; the rest goes through read/write, which
// the device model sees.
class Aperture {
 public:
  virtual ~Aperture() = default;
  virtual uint64_t size() const = 0;
  struct Piece { uint64_t offset; std::span<std::byte> bytes; };
  virtual const std::vector<Piece>& mapped() const = 0;
  virtual void read(uint64_t offset, std::span<std::byte> out) = 0;   // trapped access
  virtual void write(uint64_t offset, std::span<const std::byte> in) = 0;
};

// queue resets are Queue::reset
enum class ResetKind { function, device, firmware };
std::string_view to_string(ResetKind kind);

class Device {
 public:
  virtual ~Device() = default;
  virtual const Identity& identity() const = 0;
  virtual const Capabilities& capabilities() const = 0;

  virtual ConfigSpace& config() = 0;
  virtual Telemetry telemetry() = 0;
  virtual uint32_t read_register(uint32_t offset) = 0;
  virtual void write_register(uint32_t offset, uint32_t value) = 0;
  // The log line form of the last register wait that failed stays in the error. Condition: (value & mask) == want.
  virtual void wait_register(uint32_t offset, uint32_t mask, uint32_t want, Deadline deadline) = 0;

  // Resets and waits until the device is ready again. All contexts, queues and HBM blocks opened before are dead:
  // their calls throw Error(gone) or return Status::lost, and destroying them touches nothing on the device. Throws
  // Error(timeout) with what was reached.
  virtual void reset(ResetKind kind, Deadline deadline) = 0;
  // After somebody else reset the device: drop what was open and bring it up again.
  virtual void recover(Deadline deadline) = 0;

  virtual std::shared_ptr<DmaBuffer> dma_buffer(const DmaSpec& spec) = 0;
  virtual std::unique_ptr<Context> create_context() = 0;
  // The privileged context: HBM addresses are physical, nothing is isolated.
  virtual Context& root_context() = 0;
  // Physical address behind an address of a context. Cap::hbm_physical.
  virtual HbmAddr physical(const Context& context, HbmAddr addr) = 0;
  virtual Aperture& aperture() = 0;
  // Interrupts seen so far, per vector, those of queues included. Cap::interrupts.
  virtual std::vector<uint64_t> interrupt_counts() = 0;
};

struct OpenOptions {
  std::string run_dir;      // where a private softtpu keeps its sockets; empty: a new temporary folder
  std::chrono::nanoseconds timeout = std::chrono::seconds(10);
  bool exclusive = true;    // refuse, Error(busy), when another user has it open; not every backend can tell
  // false: identify only. Nothing is written but the memory-enable bit where registers need it, until somebody calls
  // reset() or recover(), which bring the device up.
  bool bring_up = true;
};

// Throws Error with a remedy: unknown scheme, missing socket, no permission, busy, not there.
std::unique_ptr<Device> open_device(const std::string& uri, const OpenOptions& options = {});

}  // namespace kz
