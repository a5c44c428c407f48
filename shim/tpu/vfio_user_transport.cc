// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/vfio_user_transport.h"

#include <fmt/format.h>
#include <linux/pci_regs.h>

#include <map>
#include <mutex>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/tpu/remote_regions.h"
#include "shim/uapi/kz_regs.h"
#include "shim/vfio_user/client.h"

namespace kz::tpu {
namespace {

constexpr uint32_t max_vectors = 256;  // eventfds that we are ready to hold
constexpr uint32_t msix_entry_words = 4;

class VfioUserTransport final : public Transport {
 public:
  VfioUserTransport(const std::string& socket, std::chrono::nanoseconds timeout)
      : client_(socket, timeout), name_(socket) {
    check_device();
    take_doorbells();
    make_vectors();
  }

  const std::string& name() const override { return name_; }
  uint32_t read32(uint32_t offset) override {
    uint32_t value;
    client_.region_read(KZ_BAR_REGS, offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  void write32(uint32_t offset, uint32_t value) override {
    client_.region_write(KZ_BAR_REGS, offset, std::as_bytes(std::span(&value, 1)));
  }
  void read_block(uint32_t offset, std::span<std::byte> out) override {
    client_.region_read(KZ_BAR_REGS, offset, out);
  }
  std::optional<uint32_t> glance(uint32_t offset, std::chrono::nanoseconds budget) override;
  ConfigSpace& config() override { return *config_; }
  Aperture& aperture(uint64_t hbm_bytes) override {
    if (!aperture_) aperture_.emplace(client_, client_.region_info(KZ_BAR_HBM), hbm_bytes);
    return *aperture_;
  }
  int doorbell_fd(unsigned queue) override {
    auto it = doorbells_.find(queue);
    return it == doorbells_.end() ? -1 : it->second.get();
  }
  unsigned vectors() const override { return static_cast<unsigned>(vectors_.size()); }
  int vector_fd(unsigned vector) override { return vectors_.at(vector).get(); }
  bool exact_interrupts() const override { return true; }
  void arm_interrupts() override;
  void dma_map(const DmaMapping& m) override {
    client_.dma_map({m.iova, m.bytes, m.device_reads, m.device_writes}, m.by_message ? -1 : m.fd,
                    m.fd_offset);
  }
  void dma_unmap(const DmaMapping& m, std::optional<std::chrono::nanoseconds> budget) override {
    client_.dma_unmap(m.iova, m.bytes.size(), budget);
  }
  void device_reset(std::chrono::nanoseconds budget) override { client_.reset(budget); }
  bool alive() const override { return client_.alive(); }
  void close() override { client_.close(); }

 private:
  void check_device();
  void check_ids();
  void take_doorbells();
  void make_vectors();
  void unmask_table();
  void enable_capability();
  bool msix() const { return irq_index_ == vfio_user::irq_msix; }

  vfio_user::Client client_;
  std::string name_;
  std::unique_ptr<RemoteConfig> config_;
  std::optional<RemoteAperture> aperture_;
  std::map<unsigned, Fd> doorbells_;
  std::vector<Fd> vectors_;
  uint32_t irq_index_ = vfio_user::irq_msix;
};

std::optional<uint32_t> VfioUserTransport::glance(uint32_t offset, std::chrono::nanoseconds budget) {
  uint32_t value;
  try {
    client_.region_read(KZ_BAR_REGS, offset, std::as_writable_bytes(std::span(&value, 1)), budget);
    return value;
  } catch (const Error& e) {
    if (e.code() == Errc::gone) throw;
    return std::nullopt;
  }
}

void VfioUserTransport::check_device() {
  auto wrong = [&](std::string why) {
    return Error({Errc::protocol, "open", name_, std::move(why), "is it a server of the reference TPU?", 0});
  };
  auto info = client_.device_info();
  if ((info.flags & vfio_user::device_is_pci) == 0 || info.regions < vfio_user::region_count)
    throw wrong("the server offers no PCI device");
  auto config = client_.region_info(vfio_user::region_config);
  if (config.size != 256 && config.size != 4096)
    throw wrong(fmt::format("config space of {} bytes", config.size));
  config_ = std::make_unique<RemoteConfig>(client_, static_cast<uint32_t>(config.size));
  check_ids();
  auto bar = client_.region_info(KZ_BAR_REGS);
  if (bar.size < KZ_BAR0_SIZE) throw wrong(fmt::format("BAR0 has {} bytes", bar.size));
}

void VfioUserTransport::check_ids() {
  uint32_t ids = config_->read32(PCI_VENDOR_ID);
  if (ids == 0xffffffff)
    throw Error(
        {Errc::gone, "open", name_, "config space reads all ones", "check power and link of the device", 0});
  if (ids != (uint32_t{KZ_PCI_DEVICE_ID} << 16 | KZ_PCI_VENDOR_ID))
    throw Error({Errc::unsupported, "open", name_,
                 fmt::format("device {:04x}:{:04x} is not the reference TPU {:04x}:{:04x}", ids & 0xffff,
                             ids >> 16, KZ_PCI_VENDOR_ID, KZ_PCI_DEVICE_ID),
                 "", 0});
}

void VfioUserTransport::take_doorbells() {
  for (auto& [offset, event] : client_.region_io_fds(KZ_BAR_REGS))
    if (offset >= KZ_REG_DOORBELL(0) && (offset - KZ_REG_DOORBELL(0)) % 8 == 0)
      doorbells_[static_cast<unsigned>((offset - KZ_REG_DOORBELL(0)) / 8)] = std::move(event);
}

void VfioUserTransport::make_vectors() {
  for (uint32_t index : {vfio_user::irq_msix, vfio_user::irq_msi}) {
    auto irq = client_.irq_info(index);
    if (irq.count == 0 || (irq.flags & vfio_user::irq_eventfd) == 0) continue;
    irq_index_ = index;
    // Blocking, so that a read in io_uring waits instead of failing with EAGAIN.
    for (uint32_t i = 0; i < std::min(irq.count, max_vectors); ++i) vectors_.push_back(make_eventfd(false));
    return;
  }
  throw Error({Errc::protocol, "open", name_, "the device has neither MSI-X nor MSI", "", 0});
}

// Eventfds to the server, vectors unmasked in the table, and the capability's enable bit (PCI Express
// r6.0, 7.7.1 and 7.7.2).
void VfioUserTransport::arm_interrupts() {
  std::vector<int> fds;
  for (const Fd& f : vectors_) fds.push_back(f.get());
  client_.set_irq_eventfds(irq_index_, 0, fds);
  if (msix()) unmask_table();
  enable_capability();
}

// Address and data are the eventfd's business; vector control 0 is not masked.
void VfioUserTransport::unmask_table() {
  std::vector<uint32_t> table(vectors_.size() * msix_entry_words);
  for (uint32_t v = 0; v < vectors_.size(); ++v) table[v * msix_entry_words + 2] = v;
  client_.region_write(KZ_BAR_MSIX, KZ_MSIX_TABLE_OFFSET, std::as_bytes(std::span(table)));
}

void VfioUserTransport::enable_capability() {
  for (const PciCapability& cap : walk_capabilities(*config_).found) {
    if (cap.extended || cap.id != (msix() ? PCI_CAP_ID_MSIX : PCI_CAP_ID_MSI)) continue;
    uint32_t at = cap.offset + uint32_t{PCI_MSIX_FLAGS};  // the same offset in both
    uint32_t control = config_->read16(at);
    if (msix())
      control = (control & ~uint32_t{PCI_MSIX_FLAGS_MASKALL}) | PCI_MSIX_FLAGS_ENABLE;
    else  // as many vectors as it can
      control = (control & ~uint32_t{PCI_MSI_FLAGS_QSIZE}) | PCI_MSI_FLAGS_ENABLE |
                (control & PCI_MSI_FLAGS_QMASK) << 3;
    config_->write16(at, static_cast<uint16_t>(control));
  }
}

}  // namespace

std::unique_ptr<Transport> open_vfio_user(const std::string& socket, std::chrono::nanoseconds timeout) {
  return std::make_unique<VfioUserTransport>(socket, timeout);
}

}  // namespace kz::tpu
