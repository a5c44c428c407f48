// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/vfio_user/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "shim/vfio_user/message_memory.h"

namespace kz::vfio_user {
namespace {

constexpr uint64_t page = 4096;
constexpr uint32_t max_areas = 65536, max_io_fds = 1024;
constexpr size_t max_version_text = 64 << 10;

[[noreturn]] void bad(const char* what, std::string why) {
  throw Error({Errc::protocol, "read", what, std::move(why), "the server breaks the vfio-user protocol", 0});
}

std::vector<Area> sparse_areas(const Incoming& in, const RegionInfo& info, uint32_t at) {
  auto sparse = in.as<SparseMmap>("sparse areas", at);
  if (sparse.areas > max_areas) bad("sparse areas", fmt::format("{} areas", sparse.areas));
  std::vector<Area> areas;
  for (uint32_t i = 0; i < sparse.areas; ++i) {
    auto a = in.as<Area>("sparse area", at + sizeof(SparseMmap) + uint64_t{i} * sizeof(Area));
    if (a.offset % page != 0 || a.size % page != 0 || a.size > info.size || a.offset > info.size - a.size)
      bad("sparse areas", fmt::format("area {:#x}+{:#x} of a region of {:#x}", a.offset, a.size, info.size));
    if (a.size != 0) areas.push_back(a);
  }
  return areas;
}

// What may be mapped, from the capability chain. A chain that loops or leaves the message is the server's
// fault.
std::vector<Area> mappable_areas(const Incoming& in, const RegionInfo& info) {
  if ((info.flags & region_mappable) == 0) return {};
  uint32_t at = (info.flags & region_has_caps) != 0 ? info.cap_offset : 0;
  for (int hops = 0; at != 0; ++hops) {
    if (hops > 16) bad("region capabilities", "the chain does not end");
    auto head = in.as<CapHeader>("region capability", at);
    if (head.id == cap_sparse_mmap) return sparse_areas(in, info, at);
    at = head.next;
  }
  uint64_t whole = info.size / page * page;
  return whole != 0 ? std::vector<Area>{{0, whole}} : std::vector<Area>{};
}

uint64_t number(const nlohmann::json& caps, const char* name, uint64_t fallback) {
  auto it = caps.find(name);
  if (it == caps.end()) return fallback;
  if (!it->is_number_unsigned()) bad("version reply", fmt::format("{} is no number", name));
  return it->get<uint64_t>();
}

RegionAccess answered(const Incoming& in, const RegionAccess& asked, const char* what) {
  auto got = in.as<RegionAccess>(what);
  if (got.offset != asked.offset || got.region != asked.region || got.count != asked.count)
    bad(what, fmt::format("asked for {:#x}+{} of region {}, got {:#x}+{} of region {}", asked.offset,
                          asked.count, asked.region, got.offset, got.count, got.region));
  return got;
}

}  // namespace

Agreement decode_version(const Incoming& in) {
  auto theirs = in.as<Version>("version reply");
  if (theirs.major != version_major)
    throw Error({Errc::unsupported, "agree on", "the vfio-user version",
                 fmt::format("the server speaks {}.{}, this program {}.{}", theirs.major, theirs.minor,
                             version_major, version_minor),
                 "use a server of the same major version", 0});
  Agreement a;
  a.minor = theirs.minor;
  auto* begin = reinterpret_cast<const char*>(in.payload.data()) + sizeof theirs;
  size_t room = in.payload.size() - sizeof theirs;
  std::string_view text(begin, ::strnlen(begin, room));
  if (text.empty()) return a;
  if (text.size() > max_version_text) bad("version reply", fmt::format("{} bytes of text", text.size()));
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) bad("version reply", "its text is no JSON object");
  auto caps = json.find("capabilities");
  if (caps == json.end()) return a;
  if (!caps->is_object()) bad("version reply", "its capabilities are no object");
  a.max_fds = static_cast<uint32_t>(std::min<uint64_t>(number(*caps, "max_msg_fds", 1), max_fds));
  uint64_t data = number(*caps, "max_data_xfer_size", max_data);
  if (data < sizeof(uint64_t)) bad("version reply", fmt::format("max_data_xfer_size {}", data));
  a.max_data = static_cast<uint32_t>(std::min<uint64_t>(data, max_data));
  a.max_dma_maps = number(*caps, "max_dma_maps", a.max_dma_maps);
  return a;
}

DeviceInfo decode_device_info(const Incoming& in) { return in.as<DeviceInfo>("device info"); }

RegionReply decode_region_info(const Incoming& in, uint32_t index, uint32_t room) {
  RegionReply r;
  r.info = in.as<RegionInfo>("region info");
  if (r.info.index != index) bad("region info", fmt::format("asked for {}, got {}", index, r.info.index));
  if (r.info.argsz > max_message / 2) bad("region info", fmt::format("argsz {}", r.info.argsz));
  if (r.info.size != 0 && r.info.size - 1 > INT64_MAX)
    bad("region info", fmt::format("size {:#x}", r.info.size));
  if (r.info.argsz > room && (r.info.flags & region_has_caps) != 0)
    r.needs = r.info.argsz;
  else
    r.areas = mappable_areas(in, r.info);
  return r;
}

IrqInfo decode_irq_info(const Incoming& in, uint32_t index) {
  auto info = in.as<IrqInfo>("interrupt info");
  if (info.index != index) bad("interrupt info", fmt::format("asked for {}, got {}", index, info.index));
  return info;
}

std::vector<Doorbell> decode_io_fds(const Incoming& in, uint32_t index) {
  auto head = in.as<RegionIoFds>("doorbell descriptors");
  if (head.index != index)
    bad("doorbell descriptors", fmt::format("asked for {}, got {}", index, head.index));
  if (head.count > max_io_fds) bad("doorbell descriptors", fmt::format("{} entries", head.count));
  std::vector<Doorbell> found;
  for (uint32_t i = 0; i < head.count; ++i) {
    auto entry = in.as<IoFd>("doorbell descriptor", sizeof head + i * sizeof(IoFd));
    bool plain =
        entry.type == io_fd_ioeventfd && entry.flags == 0;  // a data match would need the written value
    if (plain && entry.fd_index < in.fds.size()) found.push_back({entry.offset, entry.size, entry.fd_index});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return found;
}

void decode_region_read(const Incoming& in, const RegionAccess& asked, std::span<std::byte> out) {
  answered(in, asked, "region read");
  if (in.payload.size() != sizeof asked + out.size())
    bad("region read", fmt::format("{} bytes for {}", in.payload.size() - sizeof asked, out.size()));
  std::memcpy(out.data(), in.payload.data() + sizeof asked, out.size());
}

void decode_region_write(const Incoming& in, const RegionAccess& asked) {
  answered(in, asked, "region write");
}

namespace {

void decode_reply(const Incoming& in) {
  switch (in.header.command) {
    case cmd_version:
      decode_version(in);
      break;
    case cmd_get_info:
      decode_device_info(in);
      break;
    case cmd_get_region_info:
      decode_region_info(in, in.as<RegionInfo>("region info").index, 4096);
      break;
    case cmd_get_region_io_fds:
      decode_io_fds(in, in.as<RegionIoFds>("doorbells").index);
      break;
    case cmd_get_irq_info:
      decode_irq_info(in, in.as<IrqInfo>("interrupt info").index);
      break;
    case cmd_region_read: {
      auto access = in.as<RegionAccess>("region read");
      std::vector<std::byte> out(std::min<uint32_t>(access.count, max_data));
      decode_region_read(in, access, out);
      break;
    }
    case cmd_region_write:
      decode_region_write(in, in.as<RegionAccess>("region write"));
      break;
    default:
      break;
  }
}

}  // namespace

size_t decode_everything(std::span<const std::byte> bytes) {
  std::vector<std::byte> host(16 << 10);
  MessageMemory memory;
  memory.add({0x1000, host, true, true});
  Stream stream;
  size_t messages = 0;
  try {
    while (!bytes.empty()) {
      auto room = stream.room();
      size_t n = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), n, room.begin());
      bytes = bytes.subspan(n);
      auto message = stream.took(n, {});
      if (!message) continue;
      ++messages;
      try {
        if (message->is_reply())
          decode_reply(*message);
        else
          memory.serve(*message);
      } catch (const Error&) {
        // A message may be wrong; the next one is read all the same.
      }
    }
  } catch (const Error&) {
    // No way to find the next message.
  }
  return messages;
}

}  // namespace kz::vfio_user
