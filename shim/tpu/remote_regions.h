// SPDX-License-Identifier: GPL-2.0-or-later
// Config space and HBM aperture through a vfio-user client's regions.
#pragma once

#include <vector>

#include "shim/base/fd.h"
#include "shim/config_space.h"
#include "shim/device.h"
#include "shim/vfio_user/client.h"

namespace kz::tpu {

class RemoteConfig final : public ConfigSpace {
 public:
  RemoteConfig(vfio_user::Client& client, uint32_t size) : client_(client), size_(size) {}
  uint32_t size() const override { return size_; }
  uint8_t read8(uint32_t at) override;
  uint16_t read16(uint32_t at) override;
  uint32_t read32(uint32_t at) override;
  void write8(uint32_t at, uint8_t value) override;
  void write16(uint32_t at, uint16_t value) override;
  void write32(uint32_t at, uint32_t value) override;

 private:
  template <class T>
  T read(uint32_t at);
  template <class T>
  void write(uint32_t at, T value);
  void check(uint32_t at, uint32_t width) const;

  vfio_user::Client& client_;
  uint32_t size_;
};

class RemoteAperture final : public Aperture {
 public:
  // Maps what the server offers and what cannot shrink under us; the rest is trapped.
  RemoteAperture(vfio_user::Client& client, const vfio_user::Region& region, uint64_t hbm_bytes);
  uint64_t size() const override { return size_; }
  const std::vector<Piece>& mapped() const override { return pieces_; }
  void read(uint64_t offset, std::span<std::byte> out) override;
  void write(uint64_t offset, std::span<const std::byte> in) override;

 private:
  void check(uint64_t offset, uint64_t n) const;

  vfio_user::Client& client_;
  uint64_t size_;
  std::vector<Mapping> maps_;
  std::vector<Piece> pieces_;
};

}  // namespace kz::tpu
