// SPDX-License-Identifier: GPL-2.0-or-later
// Memory that the vfio-user client shares: by descriptor, and by messages of the server. Right values: QEMU
// docs/interop/vfio-user.rst.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "shim/vfio_user/client.h"
#include "tests/unit/code_of.h"
#include "tests/unit/vfio_user_client_peer.h"

namespace kz::vfio_user {
namespace {

using namespace peer;

TEST(VfioUserDma, SharesMemoryByDescriptor) {
  Fd memory = make_memfd("shared", 64_KiB);
  Mapping ours(memory.get(), 8192, 4_KiB, true, "shared");
  ours.data()[5] = std::byte{0x42};
  std::byte theirs{};
  DmaMap map{};
  Peer server([&](End& end) {
    end.welcome();
    auto got = end.get();
    ASSERT_TRUE(got);
    map = as<DmaMap>(got->payload);
    ASSERT_EQ(got->fds.size(), 1u);
    Mapping m(got->fds[0].get(), map.offset, Bytes{map.size}, true, "server's view");
    theirs = m.data()[5];
    m.data()[6] = std::byte{0x43};
    end.reply(*got);
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  client.dma_map({0x7000, ours.bytes(), true, true}, memory.get(), 8192);
  EXPECT_EQ(map.address, 0x7000u);
  EXPECT_EQ(map.size, 4096u);
  EXPECT_EQ(map.offset, 8192u);
  EXPECT_EQ(map.flags, dma_read_ok | dma_write_ok);
  EXPECT_EQ(theirs, std::byte{0x42});
  EXPECT_EQ(ours.data()[6], std::byte{0x43});
}

// The server reads and writes our memory while a request of ours waits for its reply.
TEST(VfioUserMessageDma, IsServedCheckedAndCounted) {
  std::promise<void> over;
  Buffer readable(8192), writable(8192);
  for (size_t i = 0; i < readable.size(); ++i) readable[i] = static_cast<std::byte>(i * 3);
  auto ask = [](End& end, uint16_t command, uint64_t address, uint64_t count, const Buffer& data,
                uint32_t flags = 0) {
    end.put(77, command, flags, bytes_of(DmaAccess{address, count}) + data);
  };
  Peer server([&](End& end) {
    end.welcome();
    for (int maps = 0; maps < 2; ++maps)
      if (auto got = end.get()) end.reply(*got);
    auto waiting = end.get();
    ASSERT_TRUE(waiting);
    EXPECT_EQ(waiting->header.command, cmd_get_info);
    ask(end, cmd_dma_read, 0x10000 + 100, 50, {});
    auto got = end.get();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->header.id, 77);
    EXPECT_EQ(got->header.flags, flag_reply);
    ASSERT_EQ(got->payload.size(), sizeof(DmaAccess) + 50);
    EXPECT_TRUE(
        std::equal(got->payload.begin() + sizeof(DmaAccess), got->payload.end(), readable.begin() + 100));
    ask(end, cmd_dma_write, 0x20000 + 8000, 192, Buffer(192, std::byte{9}));
    got = end.get();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->header.flags, flag_reply);
    EXPECT_EQ(as<DmaAccess>(got->payload).count, 192u);
    struct {
      const char* what;
      uint16_t command;
      uint64_t address, count;
      Buffer data;
    } const bad[] = {
        {"write of what is readable", cmd_dma_write, 0x10000, 8, Buffer(8)},
        {"read of what is writable", cmd_dma_read, 0x20000, 8, {}},
        {"unmapped below", cmd_dma_read, 0xffff, 8, {}},
        {"unmapped", cmd_dma_read, 0x50000, 8, {}},
        {"runs over the end", cmd_dma_read, 0x10000 + 8190, 8, {}},
        {"just behind the end", cmd_dma_read, 0x10000 + 8192, 1, {}},
        {"wraps", cmd_dma_read, UINT64_MAX - 3, 8, {}},
        {"nothing", cmd_dma_read, 0x10000, 0, {}},
        {"huge", cmd_dma_read, 0x10000, UINT64_MAX, {}},
        {"less data than said", cmd_dma_write, 0x20000, 9, Buffer(8)},
        {"more data than said", cmd_dma_write, 0x20000, 7, Buffer(8)},
        {"another command", cmd_dma_map, 0x20000, 8, {}},
    };
    for (const auto& b : bad) {
      ask(end, b.command, b.address, b.count, b.data);
      got = end.get();
      ASSERT_TRUE(got) << b.what;
      EXPECT_EQ(got->header.flags, flag_reply | flag_error) << b.what;
      EXPECT_NE(got->header.error, 0u) << b.what;
      EXPECT_TRUE(got->payload.empty()) << b.what;
    }
    ask(end, cmd_dma_write, 0x20000, 4, Buffer(4, std::byte{8}), flag_no_reply);
    end.reply(*waiting, bytes_of(DeviceInfo{16, 2, 9, 5}));
    auto next = end.get();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->header.command, cmd_dma_unmap) << "a reply came that was not asked for";
    end.reply(*next);
    ask(end, cmd_dma_read, 0x10000, 8, {});
    got = end.get();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->header.flags, flag_reply | flag_error) << "memory was read after its unmap";
    over.set_value();
  });
  Client client(server.take(), "peer", 5s);
  client.dma_map({0x10000, readable, true, false}, -1, 0);
  client.dma_map({0x20000, writable, false, true}, -1, 0);
  EXPECT_EQ(client.device_info().irqs, 5u);
  EXPECT_EQ(std::count(writable.begin(), writable.end(), std::byte{9}), 192);
  EXPECT_EQ(writable[8000], std::byte{9});
  EXPECT_EQ(writable[0], std::byte{8});
  auto counts = client.message_counts();
  EXPECT_EQ(counts.reads, 1u);
  EXPECT_EQ(counts.writes, 2u);
  EXPECT_EQ(counts.bytes, 50u + 192 + 4);
  EXPECT_EQ(counts.refused, 12u);
  client.dma_unmap(0x10000, 8192);
  EXPECT_EQ(over.get_future().wait_for(5s), std::future_status::ready);
}

}  // namespace
}  // namespace kz::vfio_user
