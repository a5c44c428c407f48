// SPDX-License-Identifier: GPL-2.0-or-later
// What the requests mean: regions, interrupts, DMA map; and the server's
// requests for memory.
#include <fmt/format.h>

#include <algorithm>

#include "shim/base/error.h"
#include "shim/vfio_user/client.h"

namespace kz::vfio_user {
namespace {

constexpr uint32_t info_room = 4096; // for RegionInfo and its capabilities

[[noreturn]] void bad(const std::string &name, const char *what,
                      std::string why) {
  throw Error({Errc::protocol, what, name, std::move(why), "", 0});
}

// The sparse areas of a region's capability chain. A chain that loops or leaves
// the message is the server's fault.
std::vector<Area> sparse_areas(const Incoming &in, const RegionInfo &info,
                               const std::string &name) {
  uint32_t at = (info.flags & region_has_caps) != 0 ? info.cap_offset : 0;
  for (int hops = 0; at != 0; ++hops) {
    if (hops > 16)
      bad(name, "read region capabilities", "the chain does not end");
    auto head = in.as<CapHeader>("region capability", at);
    if (head.id == cap_sparse_mmap) {
      auto sparse = in.as<SparseMmap>("sparse areas", at);
      std::vector<Area> areas;
      if (sparse.areas > 65536)
        bad(name, "read sparse areas", fmt::format("{} areas", sparse.areas));
      for (uint32_t i = 0; i < sparse.areas; ++i) {
        auto a = in.as<Area>("sparse area",
                             at + sizeof(SparseMmap) + i * sizeof(Area));
        if (a.offset % 4096 != 0 || a.size % 4096 != 0 || a.size > info.size ||
            a.offset > info.size - a.size)
          bad(name, "read sparse areas",
              fmt::format("area {:#x}+{:#x} of {:#x}", a.offset, a.size,
                          info.size));
        if (a.size != 0)
          areas.push_back(a);
      }
      return areas;
    }
    at = head.next;
  }
  return info.size != 0 ? std::vector<Area>{{0, info.size}}
                        : std::vector<Area>{};
}

} // namespace

DeviceInfo Client::device_info() {
  DeviceInfo ask{sizeof ask, 0, 0, 0};
  Incoming in{{}, request(cmd_get_info, ask, "get device info").payload, {}};
  return in.as<DeviceInfo>("device info");
}

Region Client::region_info(uint32_t index) {
  uint32_t room = info_room;
  for (int tries = 0; tries < 3; ++tries) {
    RegionInfo ask{room, 0, index, 0, 0, 0};
    auto reply = request(cmd_get_region_info, ask, "get region info");
    Incoming in{{}, std::move(reply.payload), {}};
    auto info = in.as<RegionInfo>("region info");
    if (info.index != index)
      bad(name_, "get region info",
          fmt::format("asked for {}, got {}", index, info.index));
    if (info.argsz > room) { // more capabilities than we made room for
      if (info.argsz > max_message / 2)
        bad(name_, "get region info", fmt::format("argsz {}", info.argsz));
      room = info.argsz;
      continue;
    }
    Region region{info.size, info.flags, {}, info.offset, {}};
    if ((info.flags & region_mappable) != 0 && !reply.fds.empty()) {
      region.areas = sparse_areas(in, info, name_);
      region.fd = std::move(reply.fds.front());
    }
    return region;
  }
  bad(name_, "get region info", "argsz grows with every answer");
}

IrqInfo Client::irq_info(uint32_t index) {
  IrqInfo ask{sizeof ask, 0, index, 0};
  Incoming in{
      {}, request(cmd_get_irq_info, ask, "get interrupt info").payload, {}};
  return in.as<IrqInfo>("interrupt info");
}

std::vector<std::pair<uint64_t, Fd>> Client::region_io_fds(uint32_t index) {
  RegionIoFds ask{info_room, 0, index, 0};
  Reply reply;
  try {
    reply = request(cmd_get_region_io_fds, ask, "get doorbell descriptors");
  } catch (const Error &e) {
    if (e.code() == Errc::io)
      return {}; // a server may not know the command
    throw;
  }
  Incoming in{{}, std::move(reply.payload), {}};
  auto head = in.as<RegionIoFds>("doorbell descriptors");
  if (head.count > 1024)
    bad(name_, "get doorbell descriptors",
        fmt::format("{} entries", head.count));
  std::vector<std::pair<uint64_t, Fd>> found;
  for (uint32_t i = 0; i < head.count; ++i) {
    auto entry =
        in.as<IoFd>("doorbell descriptor", sizeof head + i * sizeof(IoFd));
    if (entry.type != io_fd_ioeventfd || entry.fd_index >= reply.fds.size())
      continue;
    found.emplace_back(entry.offset, reply.fds[entry.fd_index].dup());
  }
  std::sort(found.begin(), found.end(),
            [](auto &a, auto &b) { return a.first < b.first; });
  return found;
}

void Client::region_read(uint32_t region, uint64_t offset,
                         std::span<std::byte> out) {
  for (size_t at = 0; at < out.size();) {
    auto n =
        static_cast<uint32_t>(std::min<size_t>(out.size() - at, max_data_));
    RegionAccess ask{offset + at, region, n};
    auto reply = request(cmd_region_read, ask, "read region");
    if (reply.payload.size() != sizeof ask + n)
      bad(name_, "read region",
          fmt::format("{} bytes for {}", reply.payload.size(), n));
    std::memcpy(out.data() + at, reply.payload.data() + sizeof ask, n);
    at += n;
  }
}

void Client::region_write(uint32_t region, uint64_t offset,
                          std::span<const std::byte> in) {
  for (size_t at = 0; at < in.size();) {
    auto n = static_cast<uint32_t>(std::min<size_t>(in.size() - at, max_data_));
    RegionAccess ask{offset + at, region, n};
    request(cmd_region_write, ask, "write region", {}, in.subspan(at, n));
    at += n;
  }
}

void Client::set_irq_eventfds(uint32_t index, uint32_t start,
                              std::span<const int> fds) {
  for (size_t at = 0; at < fds.size(); at += max_fds) {
    auto chunk = fds.subspan(at, std::min<size_t>(max_fds, fds.size() - at));
    SetIrqs set{sizeof set, set_data_eventfd | set_action_trigger, index,
                start + static_cast<uint32_t>(at),
                static_cast<uint32_t>(chunk.size())};
    request(cmd_set_irqs, set, "set interrupts", chunk);
  }
}

void Client::unset_irqs(uint32_t index) {
  SetIrqs set{sizeof set, set_data_none | set_action_trigger, index, 0, 0};
  request(cmd_set_irqs, set, "unset interrupts");
}

void Client::dma_map(uint64_t address, uint64_t size, int fd, uint64_t offset,
                     bool device_reads, bool device_writes) {
  uint32_t flags =
      (device_reads ? dma_read_ok : 0) | (device_writes ? dma_write_ok : 0);
  DmaMap map{sizeof map, flags, offset, address, size};
  request(cmd_dma_map, map, "map for DMA", std::span(&fd, 1));
}

void Client::dma_map_by_message(const MessageMemory &memory) {
  {
    std::lock_guard lock(memory_mutex_);
    memory_[memory.address] = memory;
  }
  uint32_t flags = (memory.readable ? dma_read_ok : 0) |
                   (memory.writable ? dma_write_ok : 0);
  DmaMap map{sizeof map, flags, 0, memory.address, memory.bytes.size()};
  try {
    request(cmd_dma_map, map, "map for DMA by message");
  } catch (...) {
    std::lock_guard lock(memory_mutex_);
    memory_.erase(memory.address);
    throw;
  }
}

void Client::dma_unmap(uint64_t address, uint64_t size) {
  // First here: once unmapped, no message may reach the memory, whatever the
  // server thinks.
  {
    std::lock_guard lock(memory_mutex_);
    memory_.erase(address);
  }
  DmaUnmap unmap{sizeof unmap, 0, address, size};
  request(cmd_dma_unmap, unmap, "unmap for DMA");
}

void Client::reset(std::chrono::nanoseconds timeout) {
  request(cmd_device_reset, {}, {}, "reset device", timeout);
}

void Client::serve_dma(const Incoming &message) {
  Header reply{message.header.id, message.header.command, sizeof(Header),
               flag_reply, 0};
  std::vector<std::byte> data;
  int error = 0;
  bool write = message.header.command == cmd_dma_write;
  if (!write && message.header.command != cmd_dma_read) {
    error = ENOSYS;
  } else if (message.payload.size() < sizeof(DmaAccess)) {
    error = EINVAL;
  } else {
    auto access = message.as<DmaAccess>("DMA request");
    std::lock_guard lock(memory_mutex_);
    auto it = memory_.upper_bound(access.address);
    MessageMemory *m = it == memory_.begin() ? nullptr : &std::prev(it)->second;
    uint64_t into = m != nullptr ? access.address - m->address : 0;
    if (access.count > max_data ||
        (write && message.payload.size() - sizeof access != access.count)) {
      error = EINVAL;
    } else if (m == nullptr || into > m->bytes.size() ||
               access.count > m->bytes.size() - into ||
               !(write ? m->writable : m->readable)) {
      error = EFAULT;
    } else {
      data.resize(sizeof access + (write ? 0 : access.count));
      std::memcpy(data.data(), &access, sizeof access);
      if (write)
        std::memcpy(m->bytes.data() + into,
                    message.payload.data() + sizeof access, access.count);
      else
        std::memcpy(data.data() + sizeof access, m->bytes.data() + into,
                    access.count);
      ++(write ? message_writes_ : message_reads_);
    }
  }
  if ((message.header.flags & flag_no_reply) != 0)
    return;
  if (error != 0) {
    reply.flags |= flag_error;
    reply.error = static_cast<uint32_t>(error);
    data.clear();
  }
  reply.size += static_cast<uint32_t>(data.size());
  send(reply, data, {}, {}, Deadline(timeout_));
}

} // namespace kz::vfio_user
