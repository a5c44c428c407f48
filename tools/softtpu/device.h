// SPDX-License-Identifier: GPL-2.0-or-later
// The software TPU as a PCI device: regions, interrupts, DMA windows, resets. It knows nothing of sockets.
//
// One thread (main) calls everything here unless a line says otherwise; queue workers run beside it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/softtpu/config_model.h"
#include "tools/softtpu/dma_table.h"
#include "tools/softtpu/engine.h"
#include "tools/softtpu/fault_board.h"
#include "tools/softtpu/interrupts.h"
#include "tools/softtpu/queue.h"

namespace kz::softtpu {

struct DeviceOptions {
  EngineOptions engine;
  unsigned queues = 16;  // 8..32; as many interrupt vectors
  IrqMode irq = IrqMode::msix;
  std::chrono::nanoseconds service_time{0};
  uint64_t serial = 0x4b5a000000000001;
  bool ask_for_unmapped = false;  // DmaTable::ask_for_unmapped
};

class Device {
 public:
  // Throws Error(usage) for options out of range.
  Device(const DeviceOptions& options, FaultBoard& faults);
  ~Device();
  Device(const Device&) = delete;

  // ---- the client's view; region indices of wire.h ----
  struct Region {
    uint64_t size = 0;  // 0: not there
    bool writable = true;
    int fd = -1;  // >= 0: may be mapped where `areas` say
    std::vector<Engine::Range> areas;
  };
  Region region(uint32_t index) const;
  // False for a range that is not in the region. A device that is gone reads all ones and drops writes, and
  // so do BARs while memory space is disabled or the function is in D3hot.
  bool region_read(uint32_t index, uint64_t offset, std::span<std::byte> out);
  bool region_write(uint32_t index, uint64_t offset, std::span<const std::byte> in);
  std::vector<int> doorbell_fds() const;  // one a queue, in order
  vfio_user::IrqInfo irq_info(uint32_t index) const { return irqs_.info(index); }
  // As Interrupts::set_irqs; connecting vectors enables the MSI or MSI-X capability, as a host kernel does
  // for VFIO.
  int set_irqs(const vfio_user::SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds);
  DmaTable& dma() { return dma_; }
  // The VFIO reset of the device: a bus reset.
  void bus_reset();
  // The client left: nothing of it may stay.
  void client_left();

  // ---- time and the control socket ----
  void tick();  // every 10 ms
  void set_gone(bool gone);
  bool gone() const { return gone_; }
  // Throws Error(usage) for a width that is no power of two up to 16 or a speed outside 1..5.
  void set_link(std::optional<unsigned> width, std::optional<unsigned> speed);
  unsigned link_width() const { return config_.link_width(); }
  unsigned link_speed() const { return config_.link_speed(); }
  Engine& engine() { return *engine_; }
  unsigned queues_running() const;
  uint64_t interrupts_raised() const { return irqs_.raised(); }

 private:
  // device.cc
  void reset(uint32_t reason);
  void stop_queues();
  void sync();  // what the configuration space switches
  bool bars_reachable() const;
  void context_gone(uint32_t context);

  // registers.cc
  void bar0_read(uint32_t offset, std::span<std::byte> out);
  void bar0_write(uint32_t offset, std::span<const std::byte> in);
  uint32_t read_register(uint32_t reg);
  std::optional<uint32_t> read_identity(uint32_t reg) const;
  void write_register(uint32_t reg, uint32_t value);
  void write_ctrl(uint32_t value);
  uint32_t status();
  void restore_registers();

  DeviceOptions options_;
  FaultBoard& faults_;
  DmaTable dma_;
  Interrupts irqs_;
  ConfigModel config_;
  std::unique_ptr<Engine> engine_;
  QueueShared shared_;
  bool gone_ = false;
  bool supply_lost_ = false;  // as the engine last said

  // Registers of BAR0 that are not a queue's and not the engine's.
  uint32_t ctrl_ = 0, scratch_ = 0, watchdog_ms_ = 0, time_hi_ = 0;
  Clock::time_point resetting_until_{}, ready_at_ = Clock::time_point::max();
};

}  // namespace kz::softtpu
