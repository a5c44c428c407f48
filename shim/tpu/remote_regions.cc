// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/remote_regions.h"

#include <fmt/format.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/uapi/kz_regs.h"
#include "shim/vfio_user/socket.h"

namespace kz::tpu {

// A process may hold some 65530 mappings in all; what is beyond this number of pieces stays trapped.
static constexpr size_t max_pieces = 8192;

void RemoteConfig::check(uint32_t at, uint32_t width) const {
  if (at % width == 0 && at <= size_ - width) return;
  throw Error({Errc::usage, "access", fmt::format("config space of {} at {:#x}", client_.name(), at),
               fmt::format("misaligned for {} bytes, or beyond {}", width, size_), "", 0});
}

template <class T>
T RemoteConfig::read(uint32_t at) {
  check(at, sizeof(T));
  T value;
  client_.region_read(vfio_user::region_config, at, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

template <class T>
void RemoteConfig::write(uint32_t at, T value) {
  check(at, sizeof(T));
  client_.region_write(vfio_user::region_config, at, std::as_bytes(std::span(&value, 1)));
}

uint8_t RemoteConfig::read8(uint32_t at) { return read<uint8_t>(at); }
uint16_t RemoteConfig::read16(uint32_t at) { return read<uint16_t>(at); }
uint32_t RemoteConfig::read32(uint32_t at) { return read<uint32_t>(at); }
void RemoteConfig::write8(uint32_t at, uint8_t value) { write(at, value); }
void RemoteConfig::write16(uint32_t at, uint16_t value) { write(at, value); }
void RemoteConfig::write32(uint32_t at, uint32_t value) { write(at, value); }

RemoteAperture::RemoteAperture(vfio_user::Client& client, const vfio_user::Region& region, uint64_t hbm_bytes)
    : client_(client), size_(std::min(region.size, hbm_bytes)) {
  if (!region.fd) return;
  for (const vfio_user::Area& a : region.areas) {
    if (pieces_.size() >= max_pieces || a.offset >= size_) break;
    uint64_t n = std::min(a.size, (size_ - a.offset) / 4096 * 4096);
    if (n == 0 || !vfio_user::is_safe_to_map(region.fd.get(), region.fd_offset + a.offset, n)) continue;
    maps_.emplace_back(region.fd.get(), region.fd_offset + a.offset, Bytes{n}, true, "HBM aperture");
    pieces_.push_back({a.offset, maps_.back().bytes()});
  }
}

void RemoteAperture::check(uint64_t offset, uint64_t n) const {
  if (offset <= size_ && n <= size_ - offset) return;
  throw Error(
      {Errc::usage, "access", "HBM aperture", fmt::format("{:#x}+{:#x} of {:#x}", offset, n, size_), "", 0});
}

void RemoteAperture::read(uint64_t offset, std::span<std::byte> out) {
  check(offset, out.size());
  client_.region_read(KZ_BAR_HBM, offset, out);
}

void RemoteAperture::write(uint64_t offset, std::span<const std::byte> in) {
  check(offset, in.size());
  client_.region_write(KZ_BAR_HBM, offset, in);
}

}  // namespace kz::tpu
