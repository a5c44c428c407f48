// SPDX-License-Identifier: GPL-2.0-or-later
// The vfio-user protocol as the software TPU speaks it, in memory. Source: QEMU docs/interop/vfio-user.rst.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "shim/base/error.h"
#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;
using namespace vfio_user;
using Bytes8 = std::vector<std::byte>;

Bytes8 filler(size_t n, int value = 0) { return Bytes8(n, static_cast<std::byte>(value)); }

TEST(SofttpuStream, FindsMessagesInAnyPieces) {
  Header h{7, cmd_get_info, 20, 0, 0};
  auto one = bytes_of(h) + filler(4, 1);
  h.id = 8;
  auto both = one + bytes_of(h) + filler(4, 2);
  for (size_t piece = 1; piece <= both.size(); ++piece) {
    MessageStream s;
    std::vector<uint16_t> ids;
    for (size_t at = 0; at < both.size();) {
      auto room = s.room();
      ASSERT_FALSE(room.empty());
      size_t n = std::min({room.size(), piece, both.size() - at});
      std::copy_n(both.begin() + static_cast<ptrdiff_t>(at), n, room.begin());
      at += n;
      if (auto m = s.took(n, {})) {
        ids.push_back(m->header.id);
        EXPECT_EQ(m->payload, filler(4, static_cast<int>(ids.size())));
      }
    }
    EXPECT_EQ(ids, (std::vector<uint16_t>{7, 8})) << piece;
    EXPECT_FALSE(s.partial());
  }
}

TEST(SofttpuSession, NegotiatesASubset) {
  Client c;
  Sent r =
      c.version(R"({"capabilities":{"max_msg_fds":8,"max_data_xfer_size":65536,"pgsizes":4096,"other":1}})");
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r.as<Version>().major, 0u);
  EXPECT_EQ(r.as<Version>().minor, 1u);
  ASSERT_EQ(r.payload.back(), std::byte{0});
  auto j = nlohmann::json::parse(reinterpret_cast<const char*>(r.payload.data() + sizeof(Version)));
  EXPECT_EQ(j["capabilities"]["max_data_xfer_size"], max_data);
  EXPECT_EQ(j["capabilities"]["pgsizes"], 4096);
  EXPECT_TRUE(j["capabilities"].contains("max_msg_fds"));
  EXPECT_FALSE(j["capabilities"].contains("other"));
  EXPECT_FALSE(j["capabilities"].contains("write_multiple"));
}

TEST(SofttpuSession, VersionWithoutTextIsFine) {
  Client c;
  EXPECT_TRUE(c.call(cmd_version, bytes_of(Version{0, 0})).ok());
  EXPECT_TRUE(c.session->negotiated());
}

TEST(SofttpuSession, BadVersionsEndTheClient) {
  const std::pair<Bytes8, const char*> bad[] = {
      {bytes_of(Version{1, 0}), "another major"},
      {filler(3), "too short"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string("{}"), false), "no terminator"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string("not json"), true), "not JSON"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string("[]"), true), "not an object"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string(R"({"capabilities":3})"), true),
       "capabilities no object"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string(R"({"capabilities":{"max_msg_fds":-1}})"), true),
       "negative"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string(R"({"capabilities":{"max_msg_fds":"x"}})"), true),
       "text"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string(R"({"capabilities":{"max_data_xfer_size":0}})"), true),
       "zero"},
      {bytes_of(Version{0, 1}) + bytes_of(std::string(100000, '['), true), "deep"},
  };
  for (const auto& [payload, why] : bad) {
    Client c;
    EXPECT_THROW(c.session->receive(c.message(cmd_version, payload), {}), Error) << why;
    auto r = c.sink.reply();
    ASSERT_TRUE(r.has_value()) << why;
    EXPECT_EQ(r->header.error, static_cast<uint32_t>(EINVAL)) << why;
    EXPECT_EQ(r->header.size, sizeof(Header)) << why;
  }
}

TEST(SofttpuSession, NothingGoesBeforeVersion) {
  for (uint16_t command : {0, 2, 4, 8, 9, 13, 99}) {
    Client c;
    EXPECT_THROW(c.session->receive(c.message(command, filler(32)), {}), Error) << command;
    EXPECT_FALSE(c.sink.reply().has_value());
  }
}

TEST(SofttpuSession, HeadersThatMakeNoSenseEndTheClient) {
  for (Header h : {Header{1, cmd_get_info, 15, 0, 0}, Header{1, cmd_get_info, 0, 0, 0},
                   Header{1, cmd_get_info, UINT32_MAX, 0, 0}, Header{1, cmd_get_info, max_message + 1, 0, 0},
                   Header{1, cmd_get_info, 32, 2, 0}, Header{1, cmd_get_info, 32, 0xf, 0}}) {
    Client c;
    c.version();
    EXPECT_THROW(c.session->receive(bytes_of(h), {}), Error) << h.size << " " << h.flags;
  }
}

struct Malformed {
  const char* what;
  uint16_t command;
  Bytes8 payload;
  int fds;
  int error;
};

std::vector<Malformed> malformed() {
  auto access = [](uint64_t o, uint32_t r, uint32_t n) { return bytes_of(RegionAccess{o, r, n}); };
  auto map = [](uint32_t argsz, uint32_t flags, uint64_t offset, uint64_t address, uint64_t size) {
    return bytes_of(DmaMap{argsz, flags, offset, address, size});
  };
  auto unmap = [](uint32_t argsz, uint32_t flags, uint64_t address, uint64_t size) {
    return bytes_of(DmaUnmap{argsz, flags, address, size});
  };
  uint64_t many = UINT64_MAX / 24;
  return {
      {"unknown command", 99, {}, 0, ENOTSUP},
      {"command 0", 0, {}, 0, ENOTSUP},
      {"a server's command: DMA_READ", cmd_dma_read, filler(16), 0, ENOTSUP},
      {"second VERSION", cmd_version, bytes_of(Version{0, 1}), 0, EINVAL},
      {"GET_INFO short", cmd_get_info, filler(15), 0, EINVAL},
      {"GET_INFO argsz 0", cmd_get_info, filler(16), 0, EINVAL},
      {"GET_INFO with a descriptor", cmd_get_info, bytes_of(DeviceInfo{16, 0, 0, 0}), 1, EINVAL},
      {"GET_REGION_INFO short", cmd_get_region_info, filler(31), 0, EINVAL},
      {"GET_REGION_INFO argsz 31", cmd_get_region_info, bytes_of(RegionInfo{31, 0, 0, 0, 0, 0}), 0, EINVAL},
      {"GET_REGION_INFO index 9", cmd_get_region_info, bytes_of(RegionInfo{32, 0, 9, 0, 0, 0}), 0, EINVAL},
      {"GET_REGION_INFO index max", cmd_get_region_info, bytes_of(RegionInfo{32, 0, UINT32_MAX, 0, 0, 0}), 0,
       EINVAL},
      {"IO_FDS short", cmd_get_region_io_fds, filler(8), 0, EINVAL},
      {"IO_FDS flags", cmd_get_region_io_fds, bytes_of(RegionIoFds{16, 1, 0, 0}), 0, EINVAL},
      {"IO_FDS index", cmd_get_region_io_fds, bytes_of(RegionIoFds{16, 0, 77, 0}), 0, EINVAL},
      {"GET_IRQ_INFO short", cmd_get_irq_info, filler(12), 0, EINVAL},
      {"GET_IRQ_INFO index 5", cmd_get_irq_info, bytes_of(IrqInfo{16, 0, 5, 0}), 0, EINVAL},
      {"SET_IRQS short", cmd_set_irqs, filler(19), 0, EINVAL},
      {"SET_IRQS argsz 0", cmd_set_irqs, filler(20), 0, EINVAL},
      {"SET_IRQS count overflow", cmd_set_irqs, bytes_of(SetIrqs{20, 0x24, irq_msix, 2, UINT32_MAX}), 0,
       EINVAL},
      {"SET_IRQS fds for another count", cmd_set_irqs, bytes_of(SetIrqs{20, 0x24, irq_msix, 0, 3}), 2,
       EINVAL},
      {"SET_IRQS fd that is no eventfd", cmd_set_irqs, bytes_of(SetIrqs{20, 0x24, irq_msix, 0, 1}), 1,
       EINVAL},
      {"SET_IRQS bool without data", cmd_set_irqs, bytes_of(SetIrqs{20, 0x22, irq_msix, 0, 4}), 0, EINVAL},
      {"REGION_READ short", cmd_region_read, filler(15), 0, EINVAL},
      {"REGION_READ with data", cmd_region_read, access(0, 0, 4) + filler(4), 0, EINVAL},
      {"REGION_READ count 0", cmd_region_read, access(0, 0, 0), 0, EINVAL},
      {"REGION_READ count beyond the limit", cmd_region_read, access(0, KZ_BAR_HBM, max_data + 1), 0, EINVAL},
      {"REGION_READ region 9", cmd_region_read, access(0, 9, 4), 0, EINVAL},
      {"REGION_READ empty region", cmd_region_read, access(0, 1, 4), 0, EINVAL},
      {"REGION_READ past the end", cmd_region_read, access(KZ_BAR0_SIZE - 2, 0, 4), 0, EINVAL},
      {"REGION_READ offset wraps", cmd_region_read, access(UINT64_MAX - 1, 0, 4), 0, EINVAL},
      {"REGION_WRITE less data than count", cmd_region_write, access(0, 0, 8) + filler(4), 0, EINVAL},
      {"REGION_WRITE more data than count", cmd_region_write, access(0, 0, 4) + filler(8), 0, EINVAL},
      {"REGION_WRITE count 0", cmd_region_write, access(0, 0, 0), 0, EINVAL},
      {"REGION_WRITE count huge", cmd_region_write, access(0, 0, UINT32_MAX) + filler(4), 0, EINVAL},
      {"REGION_WRITE past the end", cmd_region_write, access(cfg::size, region_config, 4) + filler(4), 0,
       EINVAL},
      {"MULTI empty", cmd_region_write_multi, {}, 0, EINVAL},
      {"MULTI count 0", cmd_region_write_multi, bytes_of(uint64_t{0}), 0, EINVAL},
      {"MULTI count huge", cmd_region_write_multi, bytes_of(many) + filler(24), 0, EINVAL},
      {"MULTI count max", cmd_region_write_multi, bytes_of(UINT64_MAX) + filler(24), 0, EINVAL},
      {"MULTI short", cmd_region_write_multi, bytes_of(uint64_t{1}) + filler(23), 0, EINVAL},
      {"MULTI 9 bytes", cmd_region_write_multi, bytes_of(uint64_t{1}) + access(0, 0, 9) + filler(8), 0,
       EINVAL},
      {"MULTI bad region", cmd_region_write_multi, bytes_of(uint64_t{1}) + access(0, 8, 4) + filler(8), 0,
       EINVAL},
      {"DMA_MAP short", cmd_dma_map, filler(31), 0, EINVAL},
      {"DMA_MAP long", cmd_dma_map, map(32, 3, 0, 0x10000, 4096) + filler(8), 0, EINVAL},
      {"DMA_MAP argsz 0", cmd_dma_map, map(0, 3, 0, 0x10000, 4096), 0, EINVAL},
      {"DMA_MAP no permission", cmd_dma_map, map(32, 0, 0, 0x10000, 4096), 0, EINVAL},
      {"DMA_MAP unknown flag", cmd_dma_map, map(32, 7, 0, 0x10000, 4096), 0, EINVAL},
      {"DMA_MAP size 0", cmd_dma_map, map(32, 3, 0, 0x10000, 0), 0, EINVAL},
      {"DMA_MAP wraps", cmd_dma_map, map(32, 3, 0, UINT64_MAX - 4095, 8192), 0, EINVAL},
      {"DMA_MAP two descriptors", cmd_dma_map, map(32, 3, 0, 0x10000, 4096), 2, EINVAL},
      {"DMA_MAP past the file", cmd_dma_map, map(32, 3, 0, 0x10000, 1 << 20), 1, EINVAL},
      {"DMA_MAP offset past the file", cmd_dma_map, map(32, 3, UINT64_MAX - 4095, 0x10000, 4096), 1, EINVAL},
      {"DMA_MAP odd offset", cmd_dma_map, map(32, 3, 1, 0x10000, 1024), 1, EINVAL},
      {"DMA_UNMAP short", cmd_dma_unmap, filler(23), 0, EINVAL},
      {"DMA_UNMAP unknown window", cmd_dma_unmap, unmap(24, 0, 0x5000, 4096), 0, ENOENT},
      {"DMA_UNMAP unknown flag", cmd_dma_unmap, unmap(24, 1, 0, 0), 0, EINVAL},
      {"DMA_UNMAP all with a range", cmd_dma_unmap, unmap(24, unmap_all, 0, 4096), 0, EINVAL},
      {"DEVICE_RESET with payload", cmd_device_reset, filler(4), 0, EINVAL},
      {"DEVICE_RESET with descriptors", cmd_device_reset, {}, 3, EINVAL},
  };
}

size_t open_files() {
  size_t n = 0;
  for (int fd = 0; fd < 1024; ++fd) n += ::fcntl(fd, F_GETFD) >= 0;
  return n;
}

TEST(SofttpuSession, MalformedMessagesGetTheirErrorAndNoMore) {
  Client c;
  c.version();
  Fd file = make_memfd("small", 64_KiB);
  size_t before = open_files();
  ASSERT_GE(malformed().size(), 30u);
  for (const auto& m : malformed()) {
    auto copies = [&] {
      std::vector<Fd> fds;
      for (int i = 0; i < m.fds; ++i) fds.push_back(file.dup());
      return fds;
    };
    c.session->receive(c.message(m.command, m.payload), copies());
    auto r = c.sink.reply();
    ASSERT_TRUE(r.has_value()) << m.what;
    EXPECT_FALSE(r->ok()) << m.what;
    EXPECT_EQ(r->header.error, static_cast<uint32_t>(m.error)) << m.what;
    EXPECT_EQ(r->header.size, sizeof(Header)) << m.what;
    EXPECT_EQ(r->header.flags, flag_reply | flag_error) << m.what;
    EXPECT_EQ(open_files(), before) << m.what;
    c.session->receive(c.message(m.command, m.payload, flag_no_reply), copies());
    EXPECT_FALSE(c.sink.reply().has_value()) << m.what << ": replied though told not to";
  }
  EXPECT_EQ(c.call(cmd_get_info, bytes_of(DeviceInfo{16, 0, 0, 0})).as<DeviceInfo>().regions, region_count);
}

TEST(SofttpuSession, SurplusDescriptorsAreClosed) {
  Client c;
  c.version();
  size_t before = open_files();
  std::vector<Fd> fds;
  for (int i = 0; i < 100; ++i) fds.push_back(make_eventfd(true));
  c.session->receive(c.message(cmd_get_info, bytes_of(DeviceInfo{16, 0, 0, 0})), std::move(fds));
  EXPECT_FALSE(c.sink.reply()->ok());
  EXPECT_EQ(open_files(), before);
}

TEST(SofttpuSession, StrayRepliesAreIgnored) {
  Client c;
  c.version();
  c.session->receive(c.message(cmd_dma_read, filler(64), flag_reply), {});
  c.session->receive(c.message(cmd_dma_write, {}, flag_reply | flag_error), {});
  EXPECT_FALSE(c.sink.reply().has_value());
}

TEST(SofttpuSession, RegionInfoIsAskedTwice) {
  Client c;
  c.version();
  Sent small = c.call(cmd_get_region_info, bytes_of(RegionInfo{32, 0, KZ_BAR_HBM, 0, 0, 0}));
  ASSERT_EQ(small.payload.size(), 32u);
  auto info = small.as<RegionInfo>();
  EXPECT_GE(info.cap_offset, 32u);
  EXPECT_GT(info.argsz, 32u);
  EXPECT_EQ(info.flags, region_readable | region_writable | region_mappable | region_has_caps);
  EXPECT_EQ(info.size, 64u << 20);
  ASSERT_EQ(small.fds.size(), 1u);
  Sent full = c.call(cmd_get_region_info, bytes_of(RegionInfo{info.argsz, 0, KZ_BAR_HBM, 0, 0, 0}));
  ASSERT_EQ(full.payload.size(), info.argsz);
  auto sparse = full.as<SparseMmap>(full.as<RegionInfo>().cap_offset);
  EXPECT_EQ(sparse.header.id, cap_sparse_mmap);
  EXPECT_EQ(sparse.header.version, 1u);
  EXPECT_EQ(sparse.header.next, 0u);
  ASSERT_EQ(info.argsz, 32u + 16u + 16u * sparse.areas);
  auto area = full.as<Area>(48);
  Mapping map(full.fds.at(0).get(), area.offset, Bytes{area.size}, true, "hbm");
  c.turn_on();
  map.data()[5] = std::byte{0x5a};
  EXPECT_EQ(c.region_read(KZ_BAR_HBM, area.offset + 5, 1), 0x5au);
}

TEST(SofttpuSession, OtherRegions) {
  Client c;
  c.version();
  const std::pair<uint32_t, uint64_t> want[] = {
      {0, KZ_BAR0_SIZE},     {1, 0},         {2, KZ_BAR2_SIZE}, {3, 0}, {5, 0}, {region_rom, 0},
      {region_config, 4096}, {region_vga, 0}};
  for (auto [index, size] : want) {
    Sent r = c.call(cmd_get_region_info, bytes_of(RegionInfo{32, 0, index, 0, 0, 0}));
    EXPECT_EQ(r.as<RegionInfo>().size, size) << index;
    EXPECT_EQ(r.as<RegionInfo>().argsz, 32u) << index;
    EXPECT_EQ(r.as<RegionInfo>().flags, size != 0 ? region_readable | region_writable : 0u) << index;
    EXPECT_TRUE(r.fds.empty()) << index;
  }
}

TEST(SofttpuSession, DoorbellsAsEventfds) {
  Client c;
  c.version();
  Sent small = c.call(cmd_get_region_io_fds, bytes_of(RegionIoFds{16, 0, 0, 0}));
  auto head = small.as<RegionIoFds>();
  EXPECT_EQ(head.argsz, 16u + 16u * 40u);
  EXPECT_TRUE(small.fds.empty());
  Sent full = c.call(cmd_get_region_io_fds, bytes_of(RegionIoFds{head.argsz, 0, 0, 0}));
  ASSERT_EQ(full.fds.size(), 16u);
  for (uint32_t i = 0; i < 16; ++i) {
    auto fd = full.as<IoFd>(16 + 40 * i);
    EXPECT_EQ(fd.offset, uint64_t{KZ_REG_DOORBELL(i)});
    EXPECT_EQ(fd.fd_index, i);
    EXPECT_EQ(fd.type, io_fd_ioeventfd);
    EXPECT_TRUE(is_eventfd(full.fds[i].get()));
  }
  Client few;
  few.version(R"({"capabilities":{"max_msg_fds":4}})");
  EXPECT_EQ(few.call(cmd_get_region_io_fds, bytes_of(RegionIoFds{4096, 0, 0, 0})).fds.size(), 4u);
}

TEST(SofttpuSession, WriteMulti) {
  Client c;
  c.version();
  c.turn_on();
  auto one = [](uint64_t offset, uint64_t value) {
    return bytes_of(RegionAccess{offset, 0, 4}) + bytes_of(value);
  };
  auto payload = bytes_of(uint64_t{2}) + one(KZ_REG_SCRATCH, 77) + one(KZ_REG_IRQ_MASK, 5);
  Sent r = c.call(cmd_region_write_multi, payload);
  EXPECT_EQ(r.as<uint64_t>(), 2u);
  EXPECT_EQ(c.reg(KZ_REG_SCRATCH), 77u);
  EXPECT_EQ(c.reg(KZ_REG_IRQ_MASK), 5u);
}

}  // namespace
}  // namespace kz::softtpu
