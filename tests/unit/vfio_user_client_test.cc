// SPDX-License-Identifier: GPL-2.0-or-later
// The vfio-user client against servers that are good, bad, silent, or gone. Right values: QEMU
// docs/interop/vfio-user.rst.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <random>

#include "shim/vfio_user/client.h"
#include "tests/unit/code_of.h"
#include "tests/unit/vfio_user_client_peer.h"

namespace kz::vfio_user {
namespace {

using namespace peer;
namespace fs = std::filesystem;

size_t open_fds() {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

struct TempFolder {
  TempFolder() {
    if (::mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~TempFolder() { fs::remove_all(path); }
  std::string path = (fs::temp_directory_path() / "kz-client-XXXXXX").string();
};

TEST(VfioUserConnect, SaysWhyItCannot) {
  TempFolder folder;
  auto connect = [&](const std::string& path) { return code_of([&] { Client client(path, 200ms); }); };
  EXPECT_EQ(connect(folder.path + "/none.sock"), Errc::not_found);
  EXPECT_EQ(connect(folder.path + "/none/none.sock"), Errc::not_found);
  EXPECT_EQ(connect("/" + std::string(200, 'x')), Errc::usage);
  std::ofstream(folder.path + "/file") << "text";
  EXPECT_EQ(connect(folder.path + "/file"), Errc::not_found);
  std::string dead = folder.path + "/dead.sock";
  {
    Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    dead.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(connect(dead), Errc::timeout);  // it listens, and never answers
  }
  EXPECT_EQ(connect(dead), Errc::not_found);
}

// Root may everything, so another user has to try.
TEST(VfioUserConnect, SaysThatItMayNot) {
  TempFolder folder;
  std::string path = folder.path + "/s.sock";
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.path.c_str(), 0755), 0);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(100);
    try {
      Client client(path, 1s);
    } catch (const Error& e) {
      ::_exit(e.code() == Errc::permission && !e.info().remedy.empty() ? 0 : 1);
    }
    ::_exit(2);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(VfioUserNegotiation, LearnsTheServersLimits) {
  Version asked{};
  std::string text;
  Peer server([&](End& end) {
    auto hello = end.get();
    ASSERT_TRUE(hello);
    EXPECT_EQ(hello->header.command, cmd_version);
    EXPECT_EQ(hello->header.flags, 0u);
    asked = as<Version>(hello->payload);
    text = reinterpret_cast<const char*>(hello->payload.data() + sizeof(Version));
    end.reply(*hello, bytes_of(Version{0, 0}) +
                          text_of(R"({"capabilities":{"max_msg_fds":3,"max_data_xfer_size":65536}})"));
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  EXPECT_EQ(client.agreement().max_fds, 3u);
  EXPECT_EQ(client.agreement().max_data, 65536u);
  EXPECT_EQ(asked.major, 0);
  EXPECT_EQ(asked.minor, 1);
  EXPECT_NE(text.find("\"capabilities\""), std::string::npos);
}

TEST(VfioUserNegotiation, TakesTheDefaultsOfTheDocument) {
  Peer server([](End& end) {
    if (auto hello = end.get()) end.reply(*hello, bytes_of(Version{0, 1}));
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  EXPECT_EQ(client.agreement().max_fds, 1u);
  EXPECT_EQ(client.agreement().max_data, 1048576u);
}

TEST(VfioUserNegotiation, RefusesWhatDoesNotFit) {
  struct {
    const char* what;
    Buffer reply;
    Errc code;
  } const table[] = {
      {"another major version", bytes_of(Version{1, 0}) + text_of("{}"), Errc::unsupported},
      {"too short", Buffer(3), Errc::protocol},
      {"no JSON", bytes_of(Version{0, 1}) + text_of("hello"), Errc::protocol},
      {"no object", bytes_of(Version{0, 1}) + text_of("[1]"), Errc::protocol},
      {"capabilities of another type", bytes_of(Version{0, 1}) + text_of(R"({"capabilities":7})"),
       Errc::protocol},
      {"a limit of another type",
       bytes_of(Version{0, 1}) + text_of(R"({"capabilities":{"max_msg_fds":"x"}})"), Errc::protocol},
      {"no room for one register",
       bytes_of(Version{0, 1}) + text_of(R"({"capabilities":{"max_data_xfer_size":4}})"), Errc::protocol},
      {"deep nesting", bytes_of(Version{0, 1}) + text_of(std::string(50000, '[')), Errc::protocol},
  };
  for (const auto& row : table) {
    Peer server([&](End& end) {
      if (auto hello = end.get()) end.reply(*hello, row.reply);
      end.stay();
    });
    EXPECT_EQ(code_of([&] { Client client(server.take(), "peer", 2s); }), row.code) << row.what;
  }
  Peer refusing([&](End& end) {
    if (auto hello = end.get()) end.refuse(*hello, EINVAL);
    end.stay();
  });
  EXPECT_EQ(code_of([&] { Client client(refusing.take(), "peer", 2s); }), Errc::unsupported);
  Peer busy([](End& end) { end.close(); });
  EXPECT_EQ(code_of([&] { Client client(busy.take(), "peer", 2s); }), Errc::busy);
}

// Every request of the client, each with what a good server would say.
struct Step {
  const char* what;
  std::function<void(Client&)> call;
};
std::vector<Step> all_steps() {
  static std::array<std::byte, 64> memory;
  static uint32_t word;
  static Fd event = make_eventfd(true);
  auto raw = std::as_writable_bytes(std::span(&word, 1));
  return {{"device info", [](Client& c) { c.device_info(); }},
          {"region info", [](Client& c) { c.region_info(0); }},
          {"irq info", [](Client& c) { c.irq_info(2); }},
          {"doorbells", [](Client& c) { c.region_io_fds(0); }},
          {"read", [raw](Client& c) { c.region_read(0, 0, raw); }},
          {"write", [raw](Client& c) { c.region_write(0, 0, raw); }},
          {"set irqs",
           [](Client& c) {
             int fd = event.get();
             c.set_irq_eventfds(2, 0, std::span(&fd, 1));
           }},
          {"unset irqs", [](Client& c) { c.unset_irqs(2); }},
          {"map",
           [](Client& c) {
             c.dma_map({0x1000, memory, true, true}, -1, 0);
           }},
          {"unmap", [](Client& c) { c.dma_unmap(0x1000, 64); }},
          {"reset", [](Client& c) { c.reset(200ms); }}};
}

TEST(VfioUserRequests, EndWhenTheServerCloses) {
  for (const Step& step : all_steps()) {
    Peer server([](End& end) {
      end.welcome();
      end.get();
      end.close();
    });
    Client client(server.take(), "peer", 5s);
    auto start = Clock::now();
    EXPECT_EQ(code_of([&] { step.call(client); }), Errc::gone) << step.what;
    EXPECT_LT(Clock::now() - start, 2s) << step.what;
    EXPECT_FALSE(client.alive());
    EXPECT_EQ(code_of([&] { step.call(client); }), Errc::gone) << step.what << ", again";
  }
}

TEST(VfioUserRequests, EndWhenTheServerIsSilent) {
  for (const Step& step : all_steps()) {
    Peer server([](End& end) {
      end.welcome();
      end.stay();
    });
    Client client(server.take(), "peer", 100ms);
    auto start = Clock::now();
    EXPECT_EQ(code_of([&] { step.call(client); }), Errc::timeout) << step.what;
    EXPECT_LT(Clock::now() - start, 2s) << step.what;
    EXPECT_TRUE(client.alive()) << step.what;
  }
}

TEST(VfioUserRequests, GiveTheServersErrno) {
  for (const Step& step : all_steps()) {
    if (std::string_view(step.what) == "doorbells")
      continue;  // optional: a refusal means that there are none
    Peer server([](End& end) {
      end.welcome();
      if (auto got = end.get()) end.refuse(*got, ENOSPC);
      end.stay();
    });
    Client client(server.take(), "peer", 5s);
    try {
      step.call(client);
      ADD_FAILURE() << step.what << ": no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::io) << step.what;
      EXPECT_EQ(e.info().sys_errno, ENOSPC) << step.what;
    }
  }
}

TEST(VfioUserRequests, SurviveAnswersThatDoNotFit) {
  std::mt19937 rng(11);
  for (const Step& step : all_steps()) {
    for (size_t size : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{39}, size_t{4000}}) {
      Buffer junk(size);
      for (auto& b : junk) b = static_cast<std::byte>(rng());
      Peer server([&](End& end) {
        end.welcome();
        while (auto got = end.get()) end.reply(*got, junk);
      });
      Client client(server.take(), "peer", 300ms);
      try {
        step.call(client);  // some have no payload to be wrong
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Errc::protocol) << step.what << ": " << e.what();
      }
    }
  }
}

TEST(VfioUserRequests, IgnoreAnswersThatNobodyWaitsFor) {
  Peer server([](End& end) {
    end.welcome();
    auto got = end.get();
    if (!got) return;
    end.put(got->header.id + 100, cmd_get_info, flag_reply, Buffer(16));
    end.reply(*got, bytes_of(DeviceInfo{16, 2, 9, 5}));
    end.reply(*got, bytes_of(DeviceInfo{16, 2, 1, 1}));
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  EXPECT_EQ(client.device_info().regions, 9u);
}

TEST(VfioUserRequests, RefuseAnswersToAnotherCommand) {
  Peer server([](End& end) {
    end.welcome();
    if (auto got = end.get()) end.put(got->header.id, cmd_dma_map, flag_reply, Buffer(16));
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  EXPECT_EQ(code_of([&] { client.device_info(); }), Errc::protocol);
}

TEST(VfioUserRegions, AreReadAndWrittenInThePiecesTheServerTakes) {
  std::vector<std::pair<uint64_t, uint32_t>> seen;
  Buffer written;
  Peer server([&](End& end) {
    end.welcome(R"({"capabilities":{"max_data_xfer_size":1000}})");
    while (auto got = end.get()) {
      auto access = as<RegionAccess>(got->payload);
      seen.emplace_back(access.offset, access.count);
      Buffer data;
      if (got->header.command == cmd_region_read) {
        for (uint32_t i = 0; i < access.count; ++i)
          data.push_back(static_cast<std::byte>((access.offset + i) * 7));
      } else {
        written.insert(written.end(), got->payload.begin() + sizeof access, got->payload.end());
      }
      end.reply(*got, bytes_of(access) + data);
    }
  });
  Client client(server.take(), "peer", 2s);
  Buffer out(2500);
  client.region_read(4, 64, out);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<std::byte>((64 + i) * 7));
  client.region_write(4, 64, out);
  EXPECT_EQ(written, out);
  std::vector<std::pair<uint64_t, uint32_t>> want{{64, 1000}, {1064, 1000}, {2064, 500}};
  want.insert(want.end(), want.begin(), want.begin() + 3);
  EXPECT_EQ(seen, want);
}

TEST(VfioUserRegions, TellWhatMayBeMapped) {
  Fd memory = make_memfd("region", 1_MiB);
  Peer server([&](End& end) {
    end.welcome();
    int round = 0;
    while (auto got = end.get()) {
      auto ask = as<RegionInfo>(got->payload);
      // First too little room was made: only the true size comes. Then two areas.
      RegionInfo info{8000, region_mappable | region_has_caps | 3, ask.index, 32, 1 << 20, 0};
      if (round++ == 0) {
        end.reply(*got, bytes_of(info), {memory.get()});
        continue;
      }
      EXPECT_GE(ask.argsz, 8000u);
      info.argsz = 32 + 16 + 32;
      end.reply(*got,
                bytes_of(info) + bytes_of(SparseMmap{{cap_sparse_mmap, 1, 0}, 2, 0}) +
                    bytes_of(Area{0, 4096}) + bytes_of(Area{65536, 8192}),
                {memory.get()});
    }
  });
  Client client(server.take(), "peer", 2s);
  Region region = client.region_info(4);
  ASSERT_EQ(region.areas.size(), 2u);
  EXPECT_EQ(region.areas[1].offset, 65536u);
  EXPECT_EQ(region.areas[1].size, 8192u);
  EXPECT_TRUE(region.fd);
}

TEST(VfioUserDoorbells, AreEventfdsOnly) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  Fd in(pipe_ends[0]), out(pipe_ends[1]), event = make_eventfd(true);
  Peer server([&](End& end) {
    end.welcome();
    if (auto got = end.get())
      end.reply(*got,
                bytes_of(RegionIoFds{16 + 5 * 40, 0, 0, 5}) +
                    bytes_of(IoFd{0x8008, 4, 1, io_fd_ioeventfd, 0, 0, 0}) +
                    bytes_of(IoFd{0x8000, 4, 0, io_fd_ioeventfd, 0, 0, 0}) +      // a pipe
                    bytes_of(IoFd{0x8010, 4, 9, io_fd_ioeventfd, 0, 0, 0}) +      // no such descriptor
                    bytes_of(IoFd{0x8018, 4, 1, io_fd_ioregionfd, 0, 0, 0}) +     // another kind
                    bytes_of(IoFd{0x8020, 4, 1, io_fd_ioeventfd, 1, 0, 0xdead}),  // would need the value
                {out.get(), event.get()});
    end.stay();
  });
  Client client(server.take(), "peer", 2s);
  auto found = client.region_io_fds(0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].offset, 0x8008u);
  signal_eventfd(found[0].event.get());
  EXPECT_EQ(drain_eventfd(event.get()), 1u);
}

TEST(VfioUserIrqs, GoInChunksOfWhatTheServerTakes) {
  std::vector<SetIrqs> sets;
  std::vector<size_t> counts;
  Peer server([&](End& end) {
    end.welcome(R"({"capabilities":{"max_msg_fds":2}})");
    while (auto got = end.get()) {
      sets.push_back(as<SetIrqs>(got->payload));
      counts.push_back(got->fds.size());
      end.reply(*got);
    }
  });
  Client client(server.take(), "peer", 2s);
  std::vector<Fd> events;
  std::vector<int> fds;
  for (int i = 0; i < 5; ++i) fds.push_back(events.emplace_back(make_eventfd(true)).get());
  client.set_irq_eventfds(irq_msix, 3, fds);
  ASSERT_EQ(sets.size(), 3u);
  EXPECT_EQ(counts, (std::vector<size_t>{2, 2, 1}));
  EXPECT_EQ(sets[1].start, 5u);
  EXPECT_EQ(sets[2].start, 7u);
  EXPECT_EQ(sets[2].count, 1u);
  for (const auto& s : sets) {
    EXPECT_EQ(s.index, irq_msix);
    EXPECT_EQ(s.flags, set_data_eventfd | set_action_trigger);
  }
}

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
  size_t before = open_fds();
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
  EXPECT_EQ(open_fds(), before);
}

TEST(VfioUserPeer, MaySendAnyBytes) {
  const auto steps = all_steps();  // holds a descriptor of its own
  size_t before = open_fds();
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
  EXPECT_EQ(open_fds(), before);
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
