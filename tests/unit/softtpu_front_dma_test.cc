// SPDX-License-Identifier: GPL-2.0-or-later
// DMA windows of the client: permissions, unmapping under use, access by messages.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/softtpu_front_rig.h"

namespace kz::softtpu {
namespace {

using namespace rig;
using namespace vfio_user;
using Bytes8 = std::vector<std::byte>;

TEST(SofttpuFrontDma, DmaWindowsDoNotOverlap) {
  Client c;
  c.version();
  Fd file = make_memfd("windows", 64_KiB);
  EXPECT_EQ(c.map(0x10000, 0x4000, 3, &file), 0);
  EXPECT_EQ(c.map(0x10000, 0x4000, 3, &file), EEXIST);
  EXPECT_EQ(c.map(0x13000, 0x1000, 3, &file), EEXIST);
  EXPECT_EQ(c.map(0xf000, 0x2000, 3, &file), EEXIST);
  EXPECT_EQ(c.map(0x0, 0x100000, 3, nullptr), EEXIST);
  EXPECT_EQ(c.map(0x14000, 0x1000, 1, &file), 0);
  EXPECT_EQ(c.map(UINT64_MAX - 0xfff, 0x1000, 3, nullptr), 0);  // the last page there is
  EXPECT_EQ(c.unmap(0x10000, 0x1000), ENOENT);
  EXPECT_EQ(c.unmap(0x10000, 0x4000), 0);
  EXPECT_EQ(c.map(0xf000, 0x2000, 3, &file), 0);
  EXPECT_EQ(c.unmap(0, 0, unmap_all), 0);
  EXPECT_EQ(c.device.dma().windows(), 0u);
}

TEST(SofttpuFrontDma, UnmapTakesAllWindowsOfAStretch) {
  Client c;
  c.version();
  Fd file = make_memfd("windows", 64_KiB);
  for (uint64_t at : {0x10000, 0x11000, 0x13000, 0x20000}) EXPECT_EQ(c.map(at, 0x1000, 3, &file), 0);
  EXPECT_EQ(c.map(0x30000, 0x2000, 3, &file), 0);
  EXPECT_EQ(c.unmap(0x20000, 0x11000), ENOENT);  // would cut the last one
  EXPECT_EQ(c.unmap(0x31000, 0x1000), ENOENT);
  EXPECT_EQ(c.unmap(0x14000, 0x1000), ENOENT);
  EXPECT_EQ(c.device.dma().windows(), 5u);
  EXPECT_EQ(c.unmap(0x10000, 0x8000), 0);
  EXPECT_EQ(c.device.dma().windows(), 2u);
  EXPECT_EQ(c.map(0x11000, 0x1000, 3, &file), 0);
  EXPECT_EQ(c.unmap(0, UINT64_MAX), 0);
  EXPECT_EQ(c.device.dma().windows(), 0u);
}

TEST(SofttpuFrontDma, DmaHonoursPermissionsAndBusMaster) {
  Client c;
  c.version();
  Fd file = make_memfd("windows", 64_KiB);
  c.map(0x10000, 0x1000, dma_read_ok, &file, 0x0);
  c.map(0x11000, 0x1000, dma_write_ok, &file, 0x1000);
  c.map(0x12000, 0x1000, dma_read_ok | dma_write_ok, &file, 0x2000);
  auto& bus = c.device.dma();
  Bytes8 two(0x2000), one(16);
  EXPECT_FALSE(bus.read(0x10000, one));  // bus master off
  EXPECT_EQ(bus.acquire(0x10000, 16, false), nullptr);
  c.turn_on();
  EXPECT_TRUE(bus.read(0x10000, one));
  EXPECT_FALSE(bus.write(0x10000, one));
  EXPECT_FALSE(bus.read(0x11000, one));
  EXPECT_TRUE(bus.write(0x11000, one));
  EXPECT_FALSE(bus.read(0x10000, two));  // the second page may not be read
  EXPECT_TRUE(bus.write(0x11000, two));  // across two windows
  EXPECT_EQ(bus.acquire(0x11000, 0x2000, true), nullptr);
  EXPECT_EQ(bus.acquire(0x10000, 16, true), nullptr);
  EXPECT_FALSE(bus.write(0x12ff8, one));  // runs off the end
  EXPECT_NE(bus.acquire_ignoring_rights(0x10000, 16), nullptr);
  bus.release();
  c.config(cfg::pm_control, 3, 2);  // D3hot
  EXPECT_FALSE(bus.read(0x10000, one));
}

TEST(SofttpuFrontDma, UnmapWaitsForAccessesUnderWay) {
  Client c;
  c.version();
  c.turn_on();
  Fd file = make_memfd("windows", 64_KiB);
  c.map(0x10000, 0x1000, 3, &file);
  std::atomic<int> woken{0};
  c.device.dma().on_quiet([&] { ++woken; });
  ASSERT_NE(c.device.dma().acquire(0x10000, 16, true), nullptr);
  c.session->receive(c.message(cmd_dma_unmap, bytes_of(DmaUnmap{24, 0, 0x10000, 0x1000})), {});
  c.session->receive(c.message(cmd_get_info, bytes_of(DeviceInfo{16, 0, 0, 0})), {});
  EXPECT_FALSE(c.sink.reply().has_value());  // and what comes behind waits as well
  EXPECT_EQ(c.device.dma().acquire(0x10000, 16, true), nullptr);
  c.session->resume();
  EXPECT_FALSE(c.sink.reply().has_value());
  c.device.dma().release();
  EXPECT_EQ(woken, 1);
  c.session->resume();
  auto first = c.sink.reply(), second = c.sink.reply();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->header.command, cmd_dma_unmap);
  EXPECT_EQ(first->as<DmaUnmap>().address, 0x10000u);
  EXPECT_EQ(second->header.command, cmd_get_info);
  c.device.dma().on_quiet(nullptr);
}

TEST(SofttpuFrontDma, MessageDmaComesInPieces) {
  Client c;
  c.version();
  c.turn_on();
  c.map(0x100000, 0x100000, 3, nullptr);
  Bytes8 got(200000);
  std::atomic<bool> ok{false};
  std::thread device([&] { ok = c.device.dma().read(0x100010, got); });
  for (size_t at = 0; at < got.size();) {
    auto request = c.sink.request(10s);
    ASSERT_TRUE(request.has_value());
    ASSERT_EQ(request->header.command, cmd_dma_read);
    auto access = request->as<DmaAccess>();
    ASSERT_LE(access.count, 65536u);
    ASSERT_EQ(access.address, 0x100010 + at);
    Bytes8 data(access.count);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>((at + i) * 7);
    Header h{request->header.id, cmd_dma_read, static_cast<uint32_t>(32 + data.size()), flag_reply, 0};
    c.session->receive(bytes_of(h) + bytes_of(access) + data, {});
    at += access.count;
  }
  device.join();
  EXPECT_TRUE(ok);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<std::byte>(i * 7)) << i;
}

TEST(SofttpuFrontDma, AsksForWhatIsInNoWindowOnlyWhenTold) {
  Client c;
  c.version();
  c.turn_on();
  Bytes8 word(8);
  EXPECT_FALSE(c.device.dma().read(0x5000, word));
  EXPECT_FALSE(c.device.dma().write(0x5000, word));
  EXPECT_FALSE(c.sink.request(0s).has_value()) << "the protocol forbids to ask for it";

  c.device.dma().ask_for_unmapped(true);
  for (uint16_t command : {cmd_dma_read, cmd_dma_write}) {
    std::atomic<bool> ok{true};
    std::thread device([&] {
      ok = command == cmd_dma_read ? c.device.dma().read(0x5000, word) : c.device.dma().write(0x5000, word);
    });
    auto request = c.sink.request(10s);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->header.command, command);
    EXPECT_EQ(request->as<DmaAccess>().address, 0x5000u);
    Header h{request->header.id, command, 16, flag_reply | flag_error, EFAULT};
    c.session->receive(bytes_of(h), {});
    device.join();
    EXPECT_FALSE(ok);
  }
}

TEST(SofttpuFrontDma, MessageDmaFailsOnErrorAndDisconnect) {
  Client c;
  c.version();
  c.turn_on();
  c.map(0x100000, 0x1000, 3, nullptr);
  Bytes8 word(8);
  std::atomic<int> result{-1};
  std::thread refused([&] { result = c.device.dma().write(0x100000, word); });
  auto request = c.sink.request(10s);
  ASSERT_TRUE(request.has_value());
  Header h{request->header.id, cmd_dma_write, 16, flag_reply | flag_error, EFAULT};
  c.session->receive(bytes_of(h), {});
  refused.join();
  EXPECT_EQ(result, 0);
  std::thread abandoned([&] { result = c.device.dma().read(0x100000, word) ? 1 : 2; });
  ASSERT_TRUE(c.sink.request(10s).has_value());
  c.session.reset();
  abandoned.join();
  EXPECT_EQ(result, 2);
}

}  // namespace
}  // namespace kz::softtpu
