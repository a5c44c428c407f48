// SPDX-License-Identifier: GPL-2.0-or-later
// The vfio-user client against servers that do not read, hand over what nobody asked for, or send any bytes;
// and many threads at once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "shim/vfio_user/client.h"
#include "tests/harness/snapshot.h"
#include "tests/unit/code_of.h"
#include "tests/unit/vfio_user_client_peer.h"
#include "tests/unit/vfio_user_client_steps.h"

namespace kz::vfio_user {
namespace {

using namespace peer;

TEST(VfioUserPeer, ThatDoesNotReadIsGivenUp) {
  std::atomic<bool> over{false};
  Peer server([&](End& end) {
    end.welcome();
    while (!over) ::poll(nullptr, 0, 5);
  });
  Client client(server.take(), "peer", 300ms);
  Buffer big(1 << 20);
  auto start = Clock::now();
  Errc first = code_of([&] { client.region_write(0, 0, big); });
  EXPECT_TRUE(first == Errc::timeout || first == Errc::gone);
  EXPECT_LT(Clock::now() - start, 3s);
  EXPECT_EQ(code_of([&] { client.device_info(); }), Errc::gone)
      << "half a message is out, nothing can follow";
  over = true;
}

TEST(VfioUserPeer, ThatAsksWithoutReadingDoesNotHoldTheEndUp) {
  std::atomic<bool> over{false};
  Buffer memory(1 << 20);
  Peer server([&](End& end) {
    end.welcome();
    if (auto got = end.get()) end.reply(*got);
    ::fcntl(end.fd(), F_SETFL, O_NONBLOCK);
    while (!over) end.put(1, cmd_dma_read, 0, bytes_of(DmaAccess{0, 1 << 20}));
  });
  auto client = std::make_unique<Client>(server.take(), "peer", 5s);
  client->dma_map({0, memory, true, true}, -1, 0);
  while (client->message_counts().reads == 0) ::poll(nullptr, 0, 1);
  auto start = Clock::now();
  client.reset();
  EXPECT_LT(Clock::now() - start, 1s);
  over = true;
}

TEST(VfioUserPeer, CannotMakeUsLeakDescriptors) {
  uint64_t before = test::open_fds();
  {
    std::vector<Fd> many;
    std::vector<int> fds;
    for (int i = 0; i < 200; ++i) fds.push_back(many.emplace_back(make_eventfd(true)).get());
    Peer server([&](End& end) {
      end.welcome();
      while (auto got = end.get()) {
        if (got->header.flags != 0) continue;                     // the client's answer to our request
        end.put(999, cmd_get_info, flag_reply, Buffer(16), fds);  // nobody waits for it
        end.put(5, cmd_dma_read, 0, Buffer(16), fds);             // a request
        end.reply(*got, bytes_of(DeviceInfo{16, 2, 9, 5}), fds);
      }
    });
    Client client(server.take(), "peer", 2s);
    for (int i = 0; i < 5; ++i) client.device_info();
  }
  EXPECT_EQ(test::open_fds(), before);
}

TEST(VfioUserPeer, MaySendAnyBytes) {
  const auto steps = all_steps();  // holds a descriptor of its own
  uint64_t before = test::open_fds();
  std::mt19937 rng(3);
  for (int round = 0; round < 150; ++round) {
    Buffer junk(1 + rng() % 3000);
    for (auto& b : junk) b = static_cast<std::byte>(rng());
    bool shaped = round % 2 == 0;  // else the first header makes no sense already
    if (shaped) {
      Header h{static_cast<uint16_t>(rng() % 4), static_cast<uint16_t>(rng() % 18),
               static_cast<uint32_t>(16 + rng() % 200), static_cast<uint32_t>(rng() % 64), 5};
      std::memcpy(junk.data(), &h, std::min(sizeof h, junk.size()));
    }
    Peer server([&](End& end) {
      end.welcome();
      end.put_raw(junk);
      if (auto got = end.get()) end.put_raw(junk);
      end.close();
    });
    Client client(server.take(), "peer", 2s);
    for (const Step& step : steps) {
      try {
        step.call(client);
      } catch (const Error&) {
        // any error is good, a crash or a hang is not
      }
    }
  }
  EXPECT_EQ(test::open_fds(), before);
}

TEST(VfioUserPeer, IsServedByManyThreadsAtOnce) {
  Peer server([](End& end) {
    end.welcome();
    std::vector<Got> kept;
    while (auto got = end.get()) {  // answers in reverse order, two at a time
      kept.push_back(std::move(*got));
      if (kept.size() < 2) continue;
      for (; !kept.empty(); kept.pop_back()) {
        auto access = as<RegionAccess>(kept.back().payload);
        end.reply(kept.back(), bytes_of(access) + bytes_of(static_cast<uint32_t>(access.offset)));
      }
    }
  });
  Client client(server.take(), "peer", 5s);
  auto work = [&](uint64_t base) {
    for (uint64_t i = 0; i < 200; ++i) {
      uint32_t value = 0;
      client.region_read(0, base + 4 * i, std::as_writable_bytes(std::span(&value, 1)));
      ASSERT_EQ(value, base + 4 * i);
    }
  };
  std::thread a(work, 0), b(work, 0x10000);
  a.join();
  b.join();
}

}  // namespace
}  // namespace kz::vfio_user
