// SPDX-License-Identifier: GPL-2.0-or-later
// The configuration space of the software TPU: 4096 bytes, every bit with its access attribute.
// Source: PCI Express Base Specification r6.0, 7.5.1 (header), 7.5.2 (PM), 7.5.3 (PCI Express), 7.7.1
// (MSI), 7.7.2 (MSI-X), 7.8.4 (AER), 7.9.3 (Device Serial Number); 6.6.2 (what FLR keeps). Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/softtpu/interrupts.h"

namespace kz::softtpu {

// Where the capabilities stand.
namespace cfg {
inline constexpr uint32_t command = 0x04;
inline constexpr uint32_t status = 0x06;
inline constexpr uint32_t bar0 = 0x10;
inline constexpr uint32_t pm = 0x40;
inline constexpr uint32_t pm_control = pm + 4;
inline constexpr uint32_t msi = 0x50;  // MSI or MSI-X
inline constexpr uint32_t pcie = 0x70;
inline constexpr uint32_t device_control = pcie + 0x08;
inline constexpr uint32_t link_control = pcie + 0x10;
inline constexpr uint32_t link_status = pcie + 0x12;
inline constexpr uint32_t aer = 0x100;
inline constexpr uint32_t dsn = 0x150;
inline constexpr uint32_t size = 4096;
inline constexpr uint16_t command_memory = 1u << 1;
inline constexpr uint16_t command_master = 1u << 2;
inline constexpr uint16_t control_flr = 1u << 15;
}  // namespace cfg

struct ConfigOptions {
  IrqMode irq = IrqMode::msix;
  unsigned vectors = 16;
  uint64_t hbm_bar_bytes = uint64_t{1} << 30;  // power of two
  uint64_t serial = 0;
};

class ConfigModel {
 public:
  explicit ConfigModel(const ConfigOptions& options);

  // Bytes beyond the end read as zero and drop writes.
  void read(uint32_t offset, std::span<std::byte> out) const;
  // Keeps what the attributes allow. True when a one was written to Initiate Function Level Reset.
  [[nodiscard]] bool write(uint32_t offset, std::span<const std::byte> in);

  enum class Reset { power_on, bus, flr };
  // Sticky bits (ROS, RWS, RW1CS) outlive bus resets and FLR; FLR also spares the link's own settings
  // (6.6.2).
  void reset(Reset kind);

  bool memory_enabled() const { return (get16(cfg::command) & cfg::command_memory) != 0; }
  bool bus_master() const { return (get16(cfg::command) & cfg::command_master) != 0; }
  bool in_d3() const { return (get16(cfg::pm_control) & 3) == 3; }
  bool msi_enabled() const;
  bool msi_function_masked() const;        // MSI-X only
  unsigned msi_vectors_enabled() const;    // MSI: 1 << Multiple Message Enable; MSI-X: all
  uint32_t msi_mask_bits() const;          // MSI only
  void set_msi_pending(uint32_t pending);  // MSI only
  // As the host does when the client asks for `vectors` interrupts: it switches the capability on or off.
  void enable_msi(bool on, unsigned vectors);
  // Negotiated link as Link Status shows it: lanes 1..16, speed 1..5 (2.5 .. 32 GT/s).
  void set_link(unsigned width, unsigned speed);
  unsigned link_width() const { return (get16(cfg::link_status) >> 4) & 0x3f; }
  unsigned link_speed() const { return get16(cfg::link_status) & 0xf; }

 private:
  using Bytes4k = std::array<uint8_t, cfg::size>;
  uint16_t get16(uint32_t at) const { return static_cast<uint16_t>(value_[at] | value_[at + 1] << 8); }
  static void put(Bytes4k& where, uint32_t at, unsigned bytes, uint64_t bits);
  // Value, and which of its bits can be written, cleared by a one, survive every reset, or survive FLR.
  struct Field {
    uint64_t value = 0, rw = 0, w1c = 0, sticky = 0, flr_keeps = 0;
  };
  void define(uint32_t at, unsigned bytes, const Field& field);
  void define_header();
  void define_pm();
  void define_msix();
  void define_msi();
  void define_pcie();
  void define_aer();

  ConfigOptions options_;
  Bytes4k value_{}, initial_{}, rw_{}, w1c_{}, sticky_{}, flr_keeps_{};
};

}  // namespace kz::softtpu
