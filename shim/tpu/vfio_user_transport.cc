// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/vfio_user_transport.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <cstring>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/uapi/kz_regs.h"
#include "shim/vfio_user/client.h"

namespace kz::tpu {
namespace {

using vfio_user::Client;

// Config space through the config region.
class RemoteConfig final : public ConfigSpace {
public:
  RemoteConfig(Client &client, uint32_t size) : client_(client), size_(size) {}
  uint32_t size() const override { return size_; }
  uint8_t read8(uint32_t at) override { return read<uint8_t>(at); }
  uint16_t read16(uint32_t at) override { return read<uint16_t>(at); }
  uint32_t read32(uint32_t at) override { return read<uint32_t>(at); }
  void write8(uint32_t at, uint8_t v) override { write(at, v); }
  void write16(uint32_t at, uint16_t v) override { write(at, v); }
  void write32(uint32_t at, uint32_t v) override { write(at, v); }

private:
  template <class T> void check(uint32_t at) const {
    if (at % sizeof(T) != 0 || at > size_ - sizeof(T))
      throw Error(
          {Errc::usage, "access",
           fmt::format("config space of {} at {:#x}", client_.name(), at),
           fmt::format("misaligned or beyond {} bytes", size_), "", 0});
  }
  template <class T> T read(uint32_t at) {
    check<T>(at);
    T value;
    client_.region_read(vfio_user::region_config, at,
                        std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  template <class T> void write(uint32_t at, T value) {
    check<T>(at);
    client_.region_write(vfio_user::region_config, at,
                         std::as_bytes(std::span(&value, 1)));
  }
  Client &client_;
  uint32_t size_;
};

class RemoteAperture final : public Aperture {
public:
  RemoteAperture(Client &client, const vfio_user::Region &region)
      : client_(client), size_(region.size) {
    if (!region.fd)
      return;
    for (const vfio_user::Area &a : region.areas) {
      maps_.emplace_back(region.fd.get(), region.fd_offset + a.offset,
                         Bytes{a.size}, true, "HBM aperture");
      pieces_.push_back({a.offset, maps_.back().bytes()});
    }
  }
  uint64_t size() const override { return size_; }
  const std::vector<Piece> &mapped() const override { return pieces_; }
  void read(uint64_t offset, std::span<std::byte> out) override {
    check(offset, out.size());
    client_.region_read(KZ_BAR_HBM, offset, out);
  }
  void write(uint64_t offset, std::span<const std::byte> in) override {
    check(offset, in.size());
    client_.region_write(KZ_BAR_HBM, offset, in);
  }

private:
  void check(uint64_t offset, uint64_t n) const {
    if (offset > size_ || n > size_ - offset)
      throw Error({Errc::usage, "access", "HBM aperture",
                   fmt::format("{:#x}+{:#x} of {:#x}", offset, n, size_), "",
                   0});
  }
  Client &client_;
  uint64_t size_;
  std::vector<Mapping> maps_;
  std::vector<Piece> pieces_;
};

class VfioUserTransport final : public Transport {
public:
  VfioUserTransport(const std::string &socket, std::chrono::nanoseconds timeout)
      : client_(socket, timeout), name_(socket) {
    auto info = client_.device_info();
    if ((info.flags & vfio_user::device_is_pci) == 0 ||
        info.regions < vfio_user::region_count)
      throw Error({Errc::protocol, "open", name_,
                   "the server offers no PCI device", "", 0});
    auto config = client_.region_info(vfio_user::region_config);
    if (config.size != 256 && config.size != 4096)
      throw Error({Errc::protocol, "open", name_,
                   fmt::format("config space of {} bytes", config.size), "",
                   0});
    config_ = std::make_unique<RemoteConfig>(
        client_, static_cast<uint32_t>(config.size));
    check_ids();
    if (auto bar = client_.region_info(KZ_BAR_REGS); bar.size < KZ_BAR0_SIZE)
      throw Error({Errc::protocol, "open", name_,
                   fmt::format("BAR0 has {} bytes", bar.size), "", 0});
    aperture_ = std::make_unique<RemoteAperture>(
        client_, client_.region_info(KZ_BAR_HBM));
    for (auto &[offset, fd] : client_.region_io_fds(KZ_BAR_REGS))
      if (offset >= KZ_REG_DOORBELL(0) &&
          (offset - KZ_REG_DOORBELL(0)) % 8 == 0)
        doorbells_[static_cast<unsigned>((offset - KZ_REG_DOORBELL(0)) / 8)] =
            std::move(fd);
    for (uint32_t index : {vfio_user::irq_msix, vfio_user::irq_msi}) {
      auto irq = client_.irq_info(index);
      if (irq.count == 0 || irq.count > 2048)
        continue;
      irq_index_ = index;
      // Blocking: a read in io_uring then waits instead of failing with EAGAIN.
      for (uint32_t i = 0; i < irq.count; ++i)
        vectors_.push_back(make_eventfd(false));
      break;
    }
    if (vectors_.empty())
      throw Error({Errc::protocol, "open", name_,
                   "the device has neither MSI-X nor MSI", "", 0});
  }

  const std::string &name() const override { return name_; }
  uint32_t read32(uint32_t offset) override {
    uint32_t value;
    client_.region_read(KZ_BAR_REGS, offset,
                        std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  void write32(uint32_t offset, uint32_t value) override {
    client_.region_write(KZ_BAR_REGS, offset,
                         std::as_bytes(std::span(&value, 1)));
  }
  void read_block(uint32_t offset, std::span<std::byte> out) override {
    client_.region_read(KZ_BAR_REGS, offset, out);
  }
  ConfigSpace &config() override { return *config_; }
  Aperture &aperture() override { return *aperture_; }
  int doorbell_fd(unsigned queue) override {
    auto it = doorbells_.find(queue);
    return it == doorbells_.end() ? -1 : it->second.get();
  }
  unsigned vectors() const override {
    return static_cast<unsigned>(vectors_.size());
  }
  int vector_fd(unsigned vector) override { return vectors_.at(vector).get(); }
  bool exact_interrupts() const override { return true; }
  void arm_interrupts() override;
  void dma_map(const DmaMapping &m) override {
    if (m.by_message)
      client_.dma_map_by_message(
          {m.iova, m.bytes, m.device_reads, m.device_writes});
    else
      client_.dma_map(m.iova, m.bytes.size(), m.fd, 0, m.device_reads,
                      m.device_writes);
  }
  void dma_unmap(const DmaMapping &m) override {
    client_.dma_unmap(m.iova, m.bytes.size());
  }
  void device_reset(std::chrono::nanoseconds timeout) override {
    client_.reset(timeout);
  }
  bool alive() const override { return client_.alive(); }

private:
  void check_ids() {
    uint32_t ids = config_->read32(PCI_VENDOR_ID);
    if (ids == 0xffffffff)
      throw Error({Errc::gone, "open", name_, "config space reads all ones",
                   "check power and link of the device", 0});
    if (ids != (uint32_t{KZ_PCI_DEVICE_ID} << 16 | KZ_PCI_VENDOR_ID))
      throw Error(
          {Errc::unsupported, "open", name_,
           fmt::format(
               "device {:04x}:{:04x} is not the reference TPU {:04x}:{:04x}",
               ids & 0xffff, ids >> 16, KZ_PCI_VENDOR_ID, KZ_PCI_DEVICE_ID),
           "", 0});
  }

  Client client_;
  std::string name_;
  std::unique_ptr<RemoteConfig> config_;
  std::unique_ptr<RemoteAperture> aperture_;
  std::map<unsigned, Fd> doorbells_;
  std::vector<Fd> vectors_;
  uint32_t irq_index_ = vfio_user::irq_msix;
};

// Eventfds to the server, vectors unmasked in the table, and the capability's
// enable bit (PCI Express r6.0, 7.7.1 and 7.7.2).
void VfioUserTransport::arm_interrupts() {
  std::vector<int> fds;
  for (const Fd &f : vectors_)
    fds.push_back(f.get());
  client_.set_irq_eventfds(irq_index_, 0, fds);
  bool msix = irq_index_ == vfio_user::irq_msix;
  if (msix) {
    for (unsigned v = 0; v < vectors_.size(); ++v) {
      uint32_t entry[4] = {0, 0, v,
                           0}; // address and data are the eventfd's business;
                               // vector control 0: not masked
      client_.region_write(KZ_BAR_MSIX, KZ_MSIX_TABLE_OFFSET + v * sizeof entry,
                           std::as_bytes(std::span(entry)));
    }
  }
  for (const PciCapability &cap : walk_capabilities(*config_).found) {
    if (cap.extended || cap.id != (msix ? PCI_CAP_ID_MSIX : PCI_CAP_ID_MSI))
      continue;
    uint16_t control =
        config_->read16(cap.offset + PCI_MSIX_FLAGS); // same offset in both
    if (msix)
      control = static_cast<uint16_t>((control & ~PCI_MSIX_FLAGS_MASKALL) |
                                      PCI_MSIX_FLAGS_ENABLE);
    else
      control = static_cast<uint16_t>(
          (control & ~PCI_MSI_FLAGS_QSIZE) | PCI_MSI_FLAGS_ENABLE |
          ((control & PCI_MSI_FLAGS_QMASK) << 3)); // as many as it can
    config_->write16(cap.offset + PCI_MSIX_FLAGS, control);
  }
}

} // namespace

std::unique_ptr<Transport> open_vfio_user(const std::string &socket,
                                          std::chrono::nanoseconds timeout) {
  return std::make_unique<VfioUserTransport>(socket, timeout);
}

} // namespace kz::tpu
