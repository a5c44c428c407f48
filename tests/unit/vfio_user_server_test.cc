// SPDX-License-Identifier: GPL-2.0-or-later
// The software TPU's server over real sockets: a minimal client of its own, clients that misbehave, the
// control socket.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/unit/softtpu_front_peer.h"
#include "tools/softtpu/server.h"

namespace kz::softtpu {
namespace {

using namespace rig;
using nlohmann::json;

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override { start({}); }
  void start(std::vector<ScriptStep> script, bool one_client = false,
             std::chrono::milliseconds handshake = std::chrono::seconds(5)) {
    ServerOptions options{socket(), control(), one_client, std::move(script), handshake};
    server_.emplace(options, device_, faults_, log_);
    thread_ = std::thread([this] { server_->run(stop_.get()); });
  }
  void TearDown() override {
    signal_eventfd(stop_.get());
    if (thread_.joinable()) thread_.join();
    server_.reset();
    EXPECT_FALSE(std::filesystem::exists(socket()));
    EXPECT_FALSE(std::filesystem::exists(control()));
  }
  void restart(std::vector<ScriptStep> script, bool one_client = false,
               std::chrono::milliseconds handshake = std::chrono::seconds(5)) {
    TearDown();
    drain_eventfd(stop_.get());
    start(std::move(script), one_client, handshake);
  }
  std::string socket() const { return folder_.path + "/s"; }
  std::string control() const { return folder_.path + "/c"; }
  json ask(const std::string& line) {
    Fd fd = connect_to(control());
    std::string text = line + "\n";
    send_all(fd, std::as_bytes(std::span(text)));
    return answer(fd);
  }
  static json answer(const Fd& fd) {
    std::string text;
    char c;
    while (::recv(fd.get(), &c, 1, 0) == 1 && c != '\n') text += c;
    return json::parse(text, nullptr, false);
  }
  // A client that works is the proof that the server has survived whatever came before.
  void expect_alive() {
    Peer p(socket());
    ASSERT_TRUE(p.negotiate());
    p.write(region_config, cfg::command, 6);
    EXPECT_EQ(p.reg(KZ_REG_MAGIC), KZ_MAGIC);
    p.close();
    EXPECT_TRUE(Client::eventually([&] { return ask(R"({"cmd":"status"})")["client"] == false; }));
  }

  Folder folder_;
  FaultBoard faults_;
  Device device_{small_device(), faults_};
  Log log_;
  Fd stop_ = make_eventfd(true);
  std::optional<Server> server_;
  std::thread thread_;
};

TEST_F(ServerTest, SocketsArePrivate) {
  for (const auto& path : {socket(), control()}) {
    struct stat st {};
    ASSERT_EQ(::stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
  }
}

TEST_F(ServerTest, ServesOneClientAfterAnother) {
  for (int i = 0; i < 20; ++i) {
    Peer p(socket());
    ASSERT_TRUE(p.negotiate()) << i;
    p.bring_up();
    EXPECT_EQ(p.reg(KZ_REG_MAGIC), KZ_MAGIC);
    EXPECT_EQ(p.reg(KZ_REG_SCRATCH), 0u);
    p.write(0, KZ_REG_SCRATCH, 7);
  }  // the next one connects at once
}

TEST_F(ServerTest, SecondClientIsClosedAtOnce) {
  Peer first(socket());
  ASSERT_TRUE(first.negotiate());
  Peer second(socket());
  EXPECT_TRUE(closed_by_server(second.fd()));
  first.write(region_config, cfg::command, 6);
  EXPECT_EQ(first.reg(KZ_REG_MAGIC), KZ_MAGIC);
}

TEST_F(ServerTest, SilentConnectionIsDropped) {
  restart({}, false, 50ms);
  Peer silent(socket());
  EXPECT_TRUE(closed_by_server(silent.fd()));
  expect_alive();
}

TEST_F(ServerTest, RunsCommandsByEventfds) {
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  p.bring_up();
  auto io = p.call(cmd_get_region_io_fds, bytes_of(RegionIoFds{4096, 0, 0, 0}));
  ASSERT_TRUE(io && io->fds.size() == 16);
  Fd memory = make_memfd("client", 1_MiB), irq = make_eventfd(true);
  Mapping map(memory.get(), 0, 1_MiB, true, "client");
  ASSERT_TRUE(p.call(cmd_dma_map, bytes_of(DmaMap{32, 3, 0, 0x100000, 1 << 20}), {memory.get()})->ok());
  uint32_t on = set_data_eventfd | set_action_trigger;
  ASSERT_TRUE(p.call(cmd_set_irqs, bytes_of(SetIrqs{20, on, irq_msix, 1, 1}), {irq.get()})->ok());
  const std::pair<uint32_t, uint32_t> setup[] = {
      {KZ_Q_SQ_LO, 0x100000}, {KZ_Q_CQ_LO, 0x110000}, {KZ_Q_DBREC_LO, 0x120000},
      {KZ_Q_ORDER, 4},        {KZ_Q_VECTOR, 1},       {KZ_Q_CTRL, KZ_QCTRL_ENABLE | KZ_QCTRL_IRQ}};
  for (auto [reg, value] : setup) p.write(0, KZ_REG_QUEUE(1) + reg, value);
  std::vector<int64_t> took;
  for (uint32_t i = 0; i < 2000; ++i) {
    auto start = Clock::now();
    kz_cmd c{};
    c.opcode = KZ_OP_NOP;
    c.cid = static_cast<uint16_t>(i);
    c.flags = (i >> 4 & 1) == 0 ? KZ_CMD_PHASE : 0;
    std::memcpy(map.data() + (i & 15) * 64, &c, 64);
    __atomic_store_n(reinterpret_cast<uint32_t*>(map.data() + 0x20000), i + 1, __ATOMIC_RELEASE);
    signal_eventfd(io->fds[1].get());
    pollfd wait{irq.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 10000), 1);
    EXPECT_EQ(drain_eventfd(irq.get()), 1u);
    took.push_back((Clock::now() - start) / 1ns);
    kz_cqe cqe;
    std::memcpy(&cqe, map.data() + 0x10000 + (i & 15) * 16, 16);
    ASSERT_EQ(cqe.cid, static_cast<uint16_t>(i));
    ASSERT_EQ(KZ_CQE_CODE(cqe.status), KZ_ST_OK);
    __atomic_store_n(reinterpret_cast<uint32_t*>(map.data() + 0x20004), i + 1, __ATOMIC_RELEASE);
  }
  std::nth_element(took.begin(), took.begin() + 1000, took.end());
  RecordProperty("median_round_trip_ns", std::to_string(took[1000]));
}

TEST_F(ServerTest, AnswersDmaRepliesWhileAWorkerWaits) {
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  p.bring_up();
  ASSERT_TRUE(p.call(cmd_dma_map, bytes_of(DmaMap{32, 3, 0, 0x100000, 1 << 20}))->ok());
  std::vector<std::byte> memory(1 << 20), got(300000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 13);
  std::atomic<int> ok{-1};
  std::thread worker([&] { ok = device_.dma().read(0x100004, got); });
  for (size_t done = 0; done < got.size();) {
    auto request = p.receive();
    ASSERT_TRUE(request.has_value());
    auto access = request->as<DmaAccess>();
    Header h{request->header.id, cmd_dma_read, static_cast<uint32_t>(32 + access.count), flag_reply, 0};
    auto first = memory.begin() + static_cast<long>(access.address - 0x100000);
    send_all(p.fd(), bytes_of(h) + bytes_of(access) +
                         std::vector<std::byte>(first, first + static_cast<long>(access.count)));
    done += access.count;
  }
  worker.join();
  EXPECT_EQ(ok, 1);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), memory.begin() + 4));
}

TEST_F(ServerTest, SurvivesADisconnectInsideAMessage) {
  for (size_t cut : {1, 15, 16, 17, 47}) {
    Peer p(socket());
    ASSERT_TRUE(p.negotiate());
    Header h{9, cmd_dma_map, 48, 0, 0};
    auto whole = bytes_of(h) + bytes_of(DmaMap{32, 3, 0, 0x100000, 4096});
    whole.resize(cut);
    send_all(p.fd(), whole);
  }
  expect_alive();
}

TEST_F(ServerTest, SurvivesAClientThatDiesWithQueuesRunning) {
  for (int i = 0; i < 10; ++i) {
    Peer p(socket());
    ASSERT_TRUE(p.negotiate());
    p.bring_up();
    Fd memory = make_memfd("client", 1_MiB);
    ASSERT_TRUE(p.call(cmd_dma_map, bytes_of(DmaMap{32, 3, 0, 0x100000, 1 << 20}), {memory.get()})->ok());
    const std::pair<uint32_t, uint32_t> setup[] = {{KZ_Q_SQ_LO, 0x100000},
                                                   {KZ_Q_CQ_LO, 0x110000},
                                                   {KZ_Q_DBREC_LO, 0x120000},
                                                   {KZ_Q_ORDER, 4},
                                                   {KZ_Q_CTRL, KZ_QCTRL_ENABLE | KZ_QCTRL_IRQ}};
    for (uint32_t q = 0; q < 3; ++q)
      for (auto [reg, value] : setup) p.write(0, KZ_REG_QUEUE(q) + reg, value);
  }
  expect_alive();
  json status = ask(R"({"cmd":"status"})");
  EXPECT_EQ(status["queues_running"], 0);
  EXPECT_EQ(status["dma_windows"], 0);
}

TEST_F(ServerTest, SurvivesRandomBytes) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 200; ++round) {
    Peer p(socket());
    if (rng() % 4 != 0) {
      ASSERT_TRUE(p.negotiate());
    }
    for (int n = static_cast<int>(rng() % 20); n > 0; --n) {
      std::vector<std::byte> payload(rng() % 64);
      for (auto& b : payload) b = static_cast<std::byte>(rng());
      auto size = static_cast<uint32_t>(16 + payload.size());
      if (rng() % 16 == 0) size = static_cast<uint32_t>(rng());
      Header h{static_cast<uint16_t>(rng()), static_cast<uint16_t>(rng() % 20), size,
               static_cast<uint32_t>(rng() % 8 != 0 ? 0 : rng()), 0};
      std::vector<int> fds(rng() % 3, stop_.get());
      send_all(p.fd(), bytes_of(h) + payload, fds);
    }
  }
  expect_alive();
}

TEST_F(ServerTest, ClientThatNeverReadsDoesNotStopTheRest) {
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  Header h{1, cmd_region_read, 32, 0, 0};
  auto request = bytes_of(h) + bytes_of(RegionAccess{0, region_config, 4096});
  // Until the kernel takes no more: the server has stopped reading from us.
  int sent = 0;
  while (::send(p.fd().get(), request.data(), request.size(), MSG_DONTWAIT | MSG_NOSIGNAL) == 32 &&
         sent < 1'000'000)
    ++sent;
  EXPECT_LT(sent, 1'000'000);
  EXPECT_EQ(ask(R"({"cmd":"status"})")["client"], true);
  p.close();
  expect_alive();
}

TEST_F(ServerTest, ControlAnswersAndRefuses) {
  EXPECT_EQ(ask(R"({"cmd":"status"})")["ok"], true);
  json planted = ask(R"({"cmd":"inject","fault":{"row":"Q05"}})");
  ASSERT_TRUE(planted.contains("id"));
  EXPECT_EQ(ask(R"({"cmd":"list"})")["faults"].size(), 1u);
  EXPECT_EQ(ask(R"({"cmd":"clear","id":)" + planted["id"].dump() + "}")["ok"], true);
  EXPECT_EQ(ask(R"({"cmd":"list"})")["faults"].size(), 0u);
  for (int i = 0; i < 1005; ++i) planted = ask(R"({"cmd":"inject","fault":{"row":"Q05"}})");
  EXPECT_GT(planted["id"], 1000);
  EXPECT_EQ(ask(R"({"cmd":"clear","id":)" + planted["id"].dump() + "}")["ok"], true);
  EXPECT_EQ(ask(R"({"cmd":"clear"})")["ok"], true);
  for (const char* bad : {"",
                          "x",
                          "{",
                          "[]",
                          "3",
                          "{}",
                          R"({"cmd":3})",
                          R"({"cmd":"explode"})",
                          R"({"cmd":"inject"})",
                          R"({"cmd":"inject","fault":{"row":"Z99"}})",
                          R"({"cmd":"inject","fault":{"row":"Q05","params":{"no":1}}})",
                          R"({"cmd":"clear","id":77})",
                          R"({"cmd":"clear","id":-1})",
                          R"({"cmd":"clear","id":"x"})",
                          R"({"cmd":"set","gone":1})",
                          R"({"cmd":"set","link_width":3})",
                          R"({"cmd":"set","link_speed":9})",
                          R"({"cmd":"set","temperature":"hot"})",
                          R"({"cmd":"set","ambient":1e9})",
                          R"({"cmd":"set","what":1})",
                          R"({"cmd":"status","x":1})",
                          "\xff\xfe",
                          R"({"cmd":"inject","fault":{"row":"\ud800"}})"}) {
    if (*bad == 0) continue;
    EXPECT_TRUE(ask(bad).contains("error")) << bad;
  }
  EXPECT_TRUE(ask(std::string(60000, '[')).contains("error"));
  EXPECT_TRUE(ask(std::string(70000, 'x')).contains("error"));
  expect_alive();
}

TEST_F(ServerTest, ControlTakesSeveralLinesAndClients) {
  std::vector<Fd> many;
  for (int i = 0; i < 30; ++i) many.push_back(connect_to(control()));
  std::string two = "{\"cmd\":\"list\"}\n\n{\"cmd\":\"status\"}\n{\"cm";
  send_all(many[0], std::as_bytes(std::span(two)));
  EXPECT_TRUE(answer(many[0]).contains("faults"));
  EXPECT_TRUE(answer(many[0]).contains("client"));
  many.clear();
  expect_alive();
}

TEST_F(ServerTest, SetsLinkAndGone) {
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  EXPECT_EQ(ask(R"({"cmd":"set","link_width":4,"link_speed":3})")["ok"], true);
  auto status = p.call(cmd_region_read, bytes_of(RegionAccess{cfg::link_status, region_config, 2}));
  EXPECT_EQ(status->as<uint16_t>(16) & 0x3ff, 0x43);
  EXPECT_EQ(ask(R"({"cmd":"set","gone":true})")["ok"], true);
  auto id = p.call(cmd_region_read, bytes_of(RegionAccess{0, region_config, 4}));
  EXPECT_EQ(id->as<uint32_t>(16), 0xffffffffu);
  EXPECT_EQ(ask(R"({"cmd":"status"})")["gone"], true);
}

TEST_F(ServerTest, BeforeConnectRowsAreRefusedWithAClient) {
  EXPECT_TRUE(ask(R"({"cmd":"inject","fault":{"row":"M01"}})").contains("id"));
  EXPECT_EQ(ask(R"({"cmd":"clear"})")["ok"], true);
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  EXPECT_TRUE(ask(R"({"cmd":"inject","fault":{"row":"M01"}})").contains("error"));
}

TEST_F(ServerTest, QuitEndsTheServer) {
  EXPECT_EQ(ask(R"({"cmd":"quit"})")["ok"], true);
  thread_.join();
}

TEST_F(ServerTest, OneClientModeEndsWithTheClient) {
  restart({}, true);
  { Peer probe(socket()); }  // does not count: it never negotiated
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  p.close();
  thread_.join();
}

TEST_F(ServerTest, ScriptPlaysFromTheFirstConnect) {
  restart(parse_script(R"({"at_ms": 30, "do": {"cmd": "set", "link_width": 2}}
{"at_ms": 0, "do": {"cmd": "set", "link_speed": 1}}
)",
                       "script"));
  EXPECT_EQ(ask(R"({"cmd":"status"})")["link_speed"], 5);
  Peer p(socket());
  ASSERT_TRUE(p.negotiate());
  EXPECT_TRUE(Client::eventually([&] { return ask(R"({"cmd":"status"})")["link_width"] == 2; }));
  EXPECT_EQ(ask(R"({"cmd":"status"})")["link_speed"], 1);
}

}  // namespace
}  // namespace kz::softtpu
