// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/dev/aperture.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include "shim/base/error.h"
#include "shim/dev/call.h"

namespace kz::dev {
namespace {

constexpr uint64_t smallest = 1 << 20;

// The driver refuses what reaches beyond BAR or HBM: halved until it fits.
Mapping map_hbm(const Core& core) {
  const std::string what = "HBM aperture of " + core.node().path;
  for (uint64_t size = core.node().info.hbm_bytes;; size /= 2) {
    void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, core.fd(), 0);
    if (p != MAP_FAILED) {
      ::munmap(p, size);
      return Mapping(core.fd(), 0, Bytes{size}, true, what);
    }
    if (errno != EINVAL || size / 2 < smallest) throw_call("map", what, errno);
  }
}

}  // namespace

DevAperture::DevAperture(std::shared_ptr<Core> core)
    : core_(std::move(core)), epoch_(core_->epoch()), map_(map_hbm(*core_)), pieces_{{0, map_.bytes()}} {}

void DevAperture::check(uint64_t offset, uint64_t len) const {
  std::string target = fmt::format("HBM at {:#x}", offset);
  if (offset > size() || len > size() - offset)
    throw Error({Errc::usage, "reach", target, fmt::format("the aperture ends at {:#x}", size()), "", 0});
  if (dead())
    throw Error(
        {Errc::gone, "reach", target, "the mapping ended with a reset", "take the aperture again", 0});
}

void DevAperture::read(uint64_t offset, std::span<std::byte> out) {
  check(offset, out.size());
  std::memcpy(out.data(), map_.data() + offset, out.size());
}

void DevAperture::write(uint64_t offset, std::span<const std::byte> in) {
  check(offset, in.size());
  std::memcpy(map_.data() + offset, in.data(), in.size());
}

}  // namespace kz::dev
