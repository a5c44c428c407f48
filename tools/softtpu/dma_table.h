// SPDX-License-Identifier: GPL-2.0-or-later
// What the device may reach of the client's memory: the DMA windows that the client mapped, with their
// permissions. Source: QEMU docs/interop/vfio-user.rst, "VFIO_USER_DMA_MAP", "VFIO_USER_DMA_UNMAP".
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "shim/base/fd.h"
#include "tools/softtpu/engine.h"
#include "tools/softtpu/remote_memory.h"

namespace kz::softtpu {

class DmaTable final : public HostBus {
 public:
  static constexpr size_t max_maps = 32768;  // below what one process may map (vm.max_map_count)

  // One mapped window. Opaque to callers.
  struct Window {
    uint64_t address = 0, size = 0;
    uint32_t flags = 0;          // vfio_user::dma_read_ok, dma_write_ok
    Mapping mapping;             // empty: reached by messages
    std::byte* base = nullptr;   // of `address`, where mapped
    bool host_writable = false;  // the mapping itself allows writes
    int users = 0;               // guarded by the table
  };
  using Windows = std::vector<std::shared_ptr<Window>>;

  explicit DmaTable(FaultBoard& faults) : faults_(faults) {}

  // ---- from the client's messages; each returns 0 or an errno ----
  // EEXIST: overlaps; EINVAL: flags, size or alignment; ENOSPC: too many; else what mmap said.
  int map(uint64_t address, uint64_t size, uint32_t flags, uint64_t offset, const Fd* fd);
  // All windows inside the range: a virtual IOMMU maps pages and takes back whole stretches. ENOENT where
  // there is none, or one is only partly inside; then nothing is unmapped. From now on nobody starts an
  // access; those under way are in `dying` until `quiet(dying)`; the client may be told only then.
  int unmap(uint64_t address, uint64_t size, Windows& dying);
  void unmap_all(Windows& dying);
  bool quiet(const Windows& dying) const;
  // Called, from any thread, when an access to an unmapped window ended.
  void on_quiet(std::function<void()> callback);
  // The client left and nothing runs: everything it mapped goes.
  void forget_client();
  size_t windows() const;

  // A server may ask only for what its client has mapped, and refuses the rest itself. Hardware puts every address on
  // the bus, where an IOMMU refuses it and says so: with this, what no window allows is asked for by messages.
  void ask_for_unmapped(bool on) { ask_for_unmapped_ = on; }
  // Memory space of the bus: off while bus mastering is off, in D3hot and when the device is gone.
  void set_bus_master(bool on) { bus_master_ = on; }
  void set_powered(bool on) { powered_ = on; }
  RemoteMemory& remote() { return remote_; }
  // All of [iova, iova+len) is in one mapped window, so that an access never waits for the client.
  bool is_direct(uint64_t iova, uint64_t len) const;

  // ---- HostBus ----
  bool read(uint64_t iova, std::span<std::byte> out) override;
  bool write(uint64_t iova, std::span<const std::byte> in) override;
  std::byte* acquire(uint64_t iova, uint64_t len, bool for_write) override;
  void release() override;  // the calling thread's latest acquire
  std::byte* acquire_ignoring_rights(uint64_t iova, uint64_t len) override;

 private:
  struct Piece {
    std::shared_ptr<Window> window;
    uint64_t offset, len;
  };
  using Table = std::map<uint64_t, std::shared_ptr<Window>>;

  bool allowed();
  std::shared_ptr<Window> find(const Table& table, uint64_t iova, uint64_t len) const;
  // Pins all windows behind the range; false (and nothing pinned) where a byte is not mapped with `need`.
  bool pin(uint64_t iova, uint64_t len, uint32_t need, std::vector<Piece>& pieces);
  void unpin(const std::shared_ptr<Window>& window);
  std::byte* hold(std::shared_ptr<Window> window, uint64_t iova);
  void retire(std::shared_ptr<Window> window, Windows& dying);

  FaultBoard& faults_;
  RemoteMemory remote_;
  std::atomic<bool> bus_master_{false};
  std::atomic<bool> powered_{true};
  std::atomic<bool> ask_for_unmapped_{false};
  mutable std::mutex m_;
  Table table_;
  Table ghosts_;  // unmapped windows that a broken DMA engine still reaches (fault D17)
  std::vector<std::pair<std::thread::id, std::shared_ptr<Window>>> held_;
  std::function<void()> on_quiet_;
};

}  // namespace kz::softtpu
