// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/config_model.h"

#include <linux/pci_regs.h>

#include <algorithm>
#include <bit>

namespace kz::softtpu {

ConfigModel::ConfigModel(const ConfigOptions& options) : options_(options) {
  define_header();
  define_pm();
  options_.irq == IrqMode::msix ? define_msix() : define_msi();
  define_pcie();
  define_aer();
  value_ = initial_;
}

void ConfigModel::put(Bytes4k& where, uint32_t at, unsigned bytes, uint64_t bits) {
  for (unsigned i = 0; i < bytes; ++i) where[at + i] = static_cast<uint8_t>(bits >> (8 * i));
}

void ConfigModel::define(uint32_t at, unsigned bytes, const Field& f) {
  put(initial_, at, bytes, f.value);
  put(rw_, at, bytes, f.rw);
  put(w1c_, at, bytes, f.w1c);
  put(sticky_, at, bytes, f.sticky);
  put(flr_keeps_, at, bytes, f.sticky | f.flr_keeps);
}

void ConfigModel::read(uint32_t offset, std::span<std::byte> out) const {
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = offset + i < cfg::size ? std::byte{value_[offset + i]} : std::byte{0};
}

bool ConfigModel::write(uint32_t offset, std::span<const std::byte> in) {
  bool flr = false;
  for (size_t i = 0; i < in.size() && offset + i < cfg::size; ++i) {
    uint32_t at = offset + static_cast<uint32_t>(i);
    auto b = static_cast<uint8_t>(in[i]);
    if (at == cfg::device_control + 1 && (b & (cfg::control_flr >> 8)) != 0) flr = true;
    // D1 and D2 are not supported: a write of such a state is dropped (5.3.1.3 leaves the function where it
    // is).
    if (at == cfg::pm_control && (b & 3) != 0 && (b & 3) != 3) continue;
    value_[at] = static_cast<uint8_t>((value_[at] & ~rw_[at]) | (b & rw_[at]));
    value_[at] = static_cast<uint8_t>(value_[at] & ~(b & w1c_[at]));
  }
  return flr;
}

void ConfigModel::reset(Reset kind) {
  for (uint32_t i = 0; i < cfg::size; ++i) {
    uint8_t keep = kind == Reset::power_on ? 0 : kind == Reset::bus ? sticky_[i] : flr_keeps_[i];
    value_[i] = static_cast<uint8_t>((value_[i] & keep) | (initial_[i] & ~keep));
  }
}

bool ConfigModel::msi_enabled() const {
  uint16_t control = get16(cfg::msi + 2);
  return (control & (options_.irq == IrqMode::msix ? PCI_MSIX_FLAGS_ENABLE : PCI_MSI_FLAGS_ENABLE)) != 0;
}

bool ConfigModel::msi_function_masked() const {
  return options_.irq == IrqMode::msix && (get16(cfg::msi + 2) & PCI_MSIX_FLAGS_MASKALL) != 0;
}

unsigned ConfigModel::msi_vectors_enabled() const {
  if (options_.irq == IrqMode::msix) return options_.vectors;
  return 1u << std::min((get16(cfg::msi + 2) & PCI_MSI_FLAGS_QSIZE) >> 4, 5);
}

uint32_t ConfigModel::msi_mask_bits() const {
  if (options_.irq == IrqMode::msix) return 0;
  return get16(cfg::msi + PCI_MSI_MASK_64) | uint32_t{get16(cfg::msi + PCI_MSI_MASK_64 + 2)} << 16;
}

void ConfigModel::set_msi_pending(uint32_t pending) {
  if (options_.irq == IrqMode::msi) put(value_, cfg::msi + PCI_MSI_PENDING_64, 4, pending);
}

void ConfigModel::enable_msi(bool on, unsigned vectors) {
  uint16_t control = get16(cfg::msi + 2);
  uint16_t enable = options_.irq == IrqMode::msix ? PCI_MSIX_FLAGS_ENABLE : PCI_MSI_FLAGS_ENABLE;
  control = static_cast<uint16_t>(on ? control | enable : control & ~enable);
  if (on && options_.irq == IrqMode::msi && vectors > msi_vectors_enabled()) {
    unsigned order = std::bit_width(std::bit_ceil(vectors)) - 1;
    control = static_cast<uint16_t>((control & ~PCI_MSI_FLAGS_QSIZE) | (order << 4));
  }
  put(value_, cfg::msi + 2, 2, control);
}

void ConfigModel::set_link(unsigned width, unsigned speed) {
  uint16_t status = static_cast<uint16_t>((get16(cfg::link_status) & ~0x3ffu) | (width << 4) | speed);
  put(value_, cfg::link_status, 2, status);
  put(initial_, cfg::link_status, 2, status);  // what the link trained to stays over resets
}

}  // namespace kz::softtpu
