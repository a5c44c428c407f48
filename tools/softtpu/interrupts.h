// SPDX-License-Identifier: GPL-2.0-or-later
// Interrupt vectors of the software TPU: the client's eventfds, the MSI-X table and pending bits, and every
// mask between a completion and a signal. Thread-safe.
//
// Who masks: the function (MSI-X Enable, Function Mask or MSI mask bits, from the configuration space), the
// vector's entry in the table, the device (KZ_REG_IRQ_MASK), and the client through SET_IRQS. A vector that
// fires while masked stays pending and is signalled when the last mask goes. A client that keeps the table to
// itself (QEMU does) never writes ours: the mask bit of an entry counts only once that entry has been written
// since the last reset. Source: PCI Express Base r6.0, 6.1.4 (MSI, MSI-X), 7.7.2; QEMU
// docs/interop/vfio-user.rst, "VFIO_USER_DEVICE_SET_IRQS".
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "shim/base/fd.h"
#include "shim/vfio_user/wire.h"

namespace kz::softtpu {

enum class IrqMode { msix, msi };

class Interrupts {
 public:
  Interrupts(IrqMode mode, unsigned vectors);

  // ---- the client ----
  vfio_user::IrqInfo info(uint32_t index) const;  // index < vfio_user::irq_count
  // 0 or an errno. `fds` that are taken are moved from.
  int set_irqs(const vfio_user::SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds);
  // Vectors of our own kind that have an eventfd; the highest one plus one.
  unsigned connected() const;
  void forget_client();

  // ---- the device ----
  void raise(unsigned vector);
  uint64_t raised() const;  // signals sent since the start
  // From the configuration space. `allocated`: MSI's enabled vectors, a power of two; higher vectors fold
  // onto them.
  void set_function(bool enabled, bool masked, unsigned allocated, uint32_t msi_mask);
  void set_reachable(bool on);  // bus master on, D0, not gone: an interrupt is a memory write
  void set_device_mask(uint32_t mask);
  uint32_t device_mask() const;
  uint32_t pending() const;
  // FLR or bus reset: table, pending and device mask; the client's eventfds stay.
  void reset();
  void reset_device_mask();  // firmware reset: the PCI side stays

  // ---- BAR2 ----
  void table_read(uint32_t offset, std::span<std::byte> out) const;
  void table_write(uint32_t offset, std::span<const std::byte> in);

 private:
  struct Vector {
    std::shared_ptr<const Fd> event;
    uint8_t entry[16] = {};
    bool written = false;
    bool client_masked = false;
    bool pending = false;
  };
  using Signals = std::vector<std::shared_ptr<const Fd>>;

  bool masked(unsigned v) const;
  bool deliverable(unsigned v) const;
  // Takes what is pending and no longer masked; signal it without the lock.
  void collect(Signals& out);
  void send(const Signals& signals);
  int apply(const vfio_user::SetIrqs& set, std::span<const std::byte> data, std::vector<Fd>& fds,
            Signals& out);
  int connect(const vfio_user::SetIrqs& set, std::vector<Fd>& fds);
  void reset_entries();

  const IrqMode mode_;
  mutable std::mutex m_;
  std::vector<Vector> vectors_;
  std::shared_ptr<const Fd> err_, req_;
  bool enabled_ = false, function_masked_ = false, reachable_ = false;
  unsigned allocated_ = 1;
  uint32_t msi_mask_ = 0, device_mask_ = 0;
  uint64_t raised_ = 0;
};

// Is this an eventfd? Other descriptors could block who signals them.
bool is_eventfd(int fd);

}  // namespace kz::softtpu
