// SPDX-License-Identifier: GPL-2.0-or-later
// What a server's messages mean, as pure functions of their bytes: no sockets, no descriptors are used. Each
// throws Error(protocol) for a message that breaks the protocol. Source: QEMU docs/interop/vfio-user.rst.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shim/vfio_user/stream.h"
#include "shim/vfio_user/wire.h"

namespace kz::vfio_user {

struct Agreement {  // VERSION reply
  uint16_t minor = 0;
  uint32_t max_fds = 1;                     // descriptors that the server takes with one message
  uint32_t max_data = vfio_user::max_data;  // bytes of one region access
  uint64_t max_dma_maps = 65535;
};
// Throws Error(unsupported) for another major version.
Agreement decode_version(const Incoming& in);

DeviceInfo decode_device_info(const Incoming& in);

struct RegionReply {
  RegionInfo info{};
  uint32_t needs = 0;  // not 0: ask again with this argsz
  std::vector<Area>
      areas;  // what may be mapped, page-aligned and inside; the whole region where no list says otherwise
};
// `room`: the argsz that was asked with.
RegionReply decode_region_info(const Incoming& in, uint32_t index, uint32_t room);

IrqInfo decode_irq_info(const Incoming& in, uint32_t index);

struct Doorbell {
  uint64_t offset = 0;  // in the region
  uint64_t size = 0;
  size_t fd = 0;  // index into the message's descriptors
};
// The ioeventfds without data match, by offset; other kinds are left out.
std::vector<Doorbell> decode_io_fds(const Incoming& in, uint32_t index);

// Copies what was read. The reply must be to exactly this access.
void decode_region_read(const Incoming& in, const RegionAccess& asked, std::span<std::byte> out);
void decode_region_write(const Incoming& in, const RegionAccess& asked);

// Fuzzer entry. `bytes` is what a server sends, any bytes: cut into messages, each decoded as whatever its
// command says it is (requests are served from a small message memory). Returns the number of whole messages.
// Never throws, never waits, needs no descriptor.
size_t decode_everything(std::span<const std::byte> bytes);

}  // namespace kz::vfio_user
