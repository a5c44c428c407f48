// SPDX-License-Identifier: GPL-2.0-or-later
// What the requests mean: regions, interrupts, DMA map, reset.
#include <fmt/format.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/vfio_user/client.h"
#include "shim/vfio_user/socket.h"

namespace kz::vfio_user {
namespace {

constexpr uint32_t info_room = 4096;  // for an info and what follows it

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace

DeviceInfo Client::device_info() {
  DeviceInfo ask{sizeof ask, 0, 0, 0};
  return decode_device_info(
      call({.command = cmd_get_info, .what = "ask for device info of", .payload = bytes_of(ask)}));
}

Region Client::region_info(uint32_t index) {
  uint32_t room = info_room;
  for (int tries = 0; tries < 3; ++tries) {
    RegionInfo ask{room, 0, index, 0, 0, 0};
    Incoming in =
        call({.command = cmd_get_region_info, .what = "ask for region info of", .payload = bytes_of(ask)});
    RegionReply reply = decode_region_info(in, index, room);
    if (reply.needs != 0) {  // more capabilities than we made room for
      room = reply.needs;
      continue;
    }
    Region region{reply.info.size, reply.info.flags, {}, reply.info.offset, {}};
    if (!in.fds.empty() && !reply.areas.empty()) {
      region.fd = std::move(in.fds.front());
      region.areas = std::move(reply.areas);
    }
    return region;
  }
  throw Error({Errc::protocol, "ask for region info of", name_, "argsz grows with every answer", "", 0});
}

IrqInfo Client::irq_info(uint32_t index) {
  IrqInfo ask{sizeof ask, 0, index, 0};
  return decode_irq_info(
      call({.command = cmd_get_irq_info, .what = "ask for interrupt info of", .payload = bytes_of(ask)}),
      index);
}

std::vector<IoDoorbell> Client::region_io_fds(uint32_t index) {
  RegionIoFds ask{info_room, 0, index, 0};
  Incoming in;
  try {
    in = call({.command = cmd_get_region_io_fds, .what = "ask for doorbells of", .payload = bytes_of(ask)});
  } catch (const Error& e) {
    if (e.code() == Errc::io) return {};  // a server may not know the command
    throw;
  }
  std::vector<IoDoorbell> found;
  for (const Doorbell& d : decode_io_fds(in, index)) {
    const Fd& fd = in.fds[d.fd];
    if (is_eventfd(fd.get())) found.push_back({d.offset, fd.dup()});
  }
  return found;
}

void Client::region_read(uint32_t region, uint64_t offset, std::span<std::byte> out,
                         std::optional<std::chrono::nanoseconds> budget) {
  while (!out.empty()) {
    auto part = out.first(std::min<size_t>(out.size(), agreement_.max_data));
    RegionAccess ask{offset, region, static_cast<uint32_t>(part.size())};
    decode_region_read(call({.command = cmd_region_read,
                             .what = "read a region of",
                             .payload = bytes_of(ask),
                             .budget = budget}),
                       ask, part);
    out = out.subspan(part.size());
    offset += part.size();
  }
}

void Client::region_write(uint32_t region, uint64_t offset, std::span<const std::byte> in,
                          std::optional<std::chrono::nanoseconds> budget) {
  while (!in.empty()) {
    auto part = in.first(std::min<size_t>(in.size(), agreement_.max_data));
    RegionAccess ask{offset, region, static_cast<uint32_t>(part.size())};
    decode_region_write(call({.command = cmd_region_write,
                              .what = "write a region of",
                              .payload = bytes_of(ask),
                              .tail = part,
                              .budget = budget}),
                        ask);
    in = in.subspan(part.size());
    offset += part.size();
  }
}

void Client::set_irq_eventfds(uint32_t index, uint32_t start, std::span<const int> fds) {
  size_t most = std::max<uint32_t>(agreement_.max_fds, 1);
  while (!fds.empty()) {
    auto chunk = fds.first(std::min(most, fds.size()));
    SetIrqs set{sizeof set, set_data_eventfd | set_action_trigger, index, start,
                static_cast<uint32_t>(chunk.size())};
    call({.command = cmd_set_irqs, .what = "set interrupts of", .payload = bytes_of(set), .fds = chunk});
    start += static_cast<uint32_t>(chunk.size());
    fds = fds.subspan(chunk.size());
  }
}

void Client::unset_irqs(uint32_t index) {
  SetIrqs set{sizeof set, set_data_none | set_action_trigger, index, 0, 0};
  call({.command = cmd_set_irqs, .what = "unset interrupts of", .payload = bytes_of(set)});
}

void Client::dma_map(const MessageRange& range, int fd, uint64_t offset) {
  memory_.add(range);
  uint32_t flags = (range.readable ? dma_read_ok : 0) | (range.writable ? dma_write_ok : 0);
  DmaMap map{sizeof map, flags, fd >= 0 ? offset : 0, range.address, range.bytes.size()};
  std::span<const int> fds(&fd, fd >= 0 ? 1 : 0);
  try {
    call({.command = cmd_dma_map, .what = "map memory for", .payload = bytes_of(map), .fds = fds});
  } catch (...) {
    memory_.remove(range.address);
    throw;
  }
}

void Client::dma_unmap(uint64_t address, uint64_t size, std::optional<std::chrono::nanoseconds> budget) {
  memory_.remove(
      address);  // first: once unmapped, no message may reach the memory, whatever the server thinks
  if (budget && *budget <= 0ns) return;
  DmaUnmap unmap{sizeof unmap, 0, address, size};
  call({.command = cmd_dma_unmap, .what = "unmap memory of", .payload = bytes_of(unmap), .budget = budget});
}

void Client::reset(std::chrono::nanoseconds timeout) {
  call({.command = cmd_device_reset, .what = "reset", .budget = timeout});
}

}  // namespace kz::vfio_user
