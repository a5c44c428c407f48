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
#include "tests/unit/vfio_user_client_steps.h"

namespace kz::vfio_user {
namespace {

using namespace peer;
namespace fs = std::filesystem;

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

}  // namespace
}  // namespace kz::vfio_user
