// SPDX-License-Identifier: GPL-2.0-or-later
// The software TPU's server over real sockets: a minimal client of its own, clients that misbehave, the
// control socket.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "shim/base/error.h"
#include "tests/unit/softtpu_front_rig.h"
#include "tools/softtpu/server.h"

namespace kz::softtpu {
namespace {

using namespace rig;
using namespace vfio_user;
using nlohmann::json;

struct Folder {
  Folder() {
    char name[] = "/tmp/kz-server-XXXXXX";
    if (::mkdtemp(name) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

Fd connect_to(const std::string& path) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  path.copy(a.sun_path, sizeof a.sun_path - 1);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0)
      << path << ": " << strerror(errno);
  timeval limit{10, 0};  // no test hangs
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

void send_all(const Fd& fd, std::span<const std::byte> bytes, std::span<const int> fds = {}) {
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr msg{};
  msg.msg_iov = &iov;
  msg.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)] = {};
  if (!fds.empty()) {
    msg.msg_control = control;
    msg.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  while (iov.iov_len > 0) {
    ssize_t n = ::sendmsg(fd.get(), &msg, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server may have closed already
    iov.iov_base = static_cast<char*>(iov.iov_base) + n;
    iov.iov_len -= static_cast<size_t>(n);
    msg.msg_control = nullptr;
    msg.msg_controllen = 0;
  }
}

bool recv_exactly(const Fd& fd, std::span<std::byte> out, std::vector<Fd>* fds = nullptr) {
  while (!out.empty()) {
    iovec iov{out.data(), out.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)];
    msghdr msg{};
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control;
    msg.msg_controllen = sizeof control;
    ssize_t n = ::recvmsg(fd.get(), &msg, MSG_CMSG_CLOEXEC);
    if (n <= 0) return false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); c != nullptr; c = CMSG_NXTHDR(&msg, c))
      for (size_t i = 0; fds != nullptr && i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int got;
        std::memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
        fds->emplace_back(got);
      }
    out = out.subspan(static_cast<size_t>(n));
  }
  return true;
}

// The other end closed within the time limit of the socket; what comes before is dropped.
bool closed_by_server(const Fd& fd) {
  std::byte b[512];
  ssize_t n;
  do n = ::recv(fd.get(), b, sizeof b, 0);
  while (n > 0);
  return n == 0 || errno == ECONNRESET;
}

class Peer {
 public:
  explicit Peer(const std::string& path) : fd_(connect_to(path)) {}
  std::optional<Sent> call(uint16_t command, const std::vector<std::byte>& payload,
                           std::vector<int> fds = {}) {
    Header h{id_++, command, static_cast<uint32_t>(sizeof h + payload.size()), 0, 0};
    send_all(fd_, bytes_of(h) + payload, fds);
    return receive();
  }
  std::optional<Sent> receive() {
    Sent s;
    if (!recv_exactly(fd_, std::as_writable_bytes(std::span(&s.header, 1)), &s.fds)) return std::nullopt;
    s.payload.resize(s.header.size - sizeof(Header));
    if (!recv_exactly(fd_, s.payload)) return std::nullopt;
    return s;
  }
  bool negotiate() {
    auto r = call(cmd_version, bytes_of(Version{0, 1}) +
                                   bytes_of(std::string(R"({"capabilities":{"max_msg_fds":16}})"), true));
    return r && r->ok();
  }
  uint32_t reg(uint32_t offset) {
    auto r = call(cmd_region_read, bytes_of(RegionAccess{offset, 0, 4}));
    return r && r->ok() ? r->as<uint32_t>(sizeof(RegionAccess)) : 0;
  }
  bool write(uint32_t region, uint64_t offset, uint32_t value) {
    auto r = call(cmd_region_write, bytes_of(RegionAccess{offset, region, 4}) + bytes_of(value));
    return r && r->ok();
  }
  void bring_up() {
    write(region_config, cfg::command, cfg::command_memory | cfg::command_master);
    write(0, KZ_REG_CTRL, KZ_CTRL_ENABLE);
    EXPECT_TRUE(Client::eventually([&] { return (reg(KZ_REG_STATUS) & KZ_STATUS_READY) != 0; }));
  }
  const Fd& fd() const { return fd_; }
  void close() { fd_.reset(); }

 private:
  Fd fd_;
  uint16_t id_ = 1;
};

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

// The program itself, as a user starts it.
class Program {
 public:
  explicit Program(const Folder& folder, std::vector<std::string> more = {}) : socket_(folder.path + "/s") {
    std::vector<std::string> words = {KZ_BIN_DIR "/softtpu", "--socket", socket_};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (auto& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    int out[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    Fd read_end(out[0]), write_end(out[1]);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    int rc = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) throw std::runtime_error(words[0] + ": " + std::strerror(rc));
    write_end.reset();
    char c;
    while (::read(read_end.get(), &c, 1) == 1 && c != '\n') line_ += c;
  }
  ~Program() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), wait();
  }
  // "ready SOCKET", or empty when it ended before.
  const std::string& line() const { return line_; }
  void terminate() { ::kill(pid_, SIGTERM); }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& socket() const { return socket_; }

 private:
  std::string socket_, line_;
  pid_t pid_ = -1;
};

TEST(SofttpuProgram, SurvivesAClientThatShrinksItsMemory) {
  Folder folder;
  Program program(folder);
  ASSERT_EQ(program.line(), "ready " + program.socket());
  {
    Peer p(program.socket());
    ASSERT_TRUE(p.negotiate());
    p.bring_up();
    Fd memory(::memfd_create("shrinks", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(memory.get(), 1 << 20), 0);
    ASSERT_TRUE(p.call(cmd_dma_map, bytes_of(DmaMap{32, 3, 0, 0x100000, 1 << 20}), {memory.get()})->ok());
    const std::pair<uint32_t, uint32_t> setup[] = {{KZ_Q_SQ_LO, 0x100000},
                                                   {KZ_Q_CQ_LO, 0x110000},
                                                   {KZ_Q_DBREC_LO, 0x120000},
                                                   {KZ_Q_ORDER, 4},
                                                   {KZ_Q_CTRL, KZ_QCTRL_ENABLE}};
    for (auto [reg, value] : setup) p.write(0, KZ_REG_QUEUE(1) + reg, value);
    EXPECT_TRUE(Client::eventually([&] { return p.reg(KZ_REG_QUEUE(1) + KZ_Q_STATE) == KZ_QSTATE_RUN; }));
    ASSERT_EQ(::ftruncate(memory.get(), 0), 0);
    p.write(0, KZ_REG_DOORBELL(1), 0);  // the worker reads a page that is gone
    p.write(0, KZ_REG_QUEUE(1) + KZ_Q_CTRL, KZ_QCTRL_RESET);
    EXPECT_EQ(p.reg(KZ_REG_MAGIC), KZ_MAGIC);
  }
  Peer next(program.socket());
  EXPECT_TRUE(next.negotiate());
  program.terminate();
  EXPECT_EQ(program.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(program.socket()));
}

TEST(SofttpuProgram, RefusesBadWordsWithExitCode2) {
  const std::vector<std::vector<std::string>> bad = {
      {"--hbm", "100"},  {"--hbm", "lots"},          {"--geometry", "3,1,4"},    {"--irq", "intx"},
      {"--queues", "4"}, {"--service-time", "5"},    {"--serial", "xyz"},        {"--fw-version", "1.4"},
      {"--fault", "{"},  {"--fault", "{\"row\":1}"}, {"--no-such-option"},       {"--script", "/dev/null/x"},
      {"--seed", "-1"},  {"--service-time", "-1ms"}, {"--geometry", "1,2,3,4,5"}};
  for (const auto& words : bad) {
    Folder folder;
    Program program(folder, words);
    EXPECT_EQ(program.line(), "") << words[0];
    program.terminate();  // where it runs against our will
    int code = program.wait();
    EXPECT_EQ(code, words[0] == "--script" ? 4 : 2) << words[0] << " " << (words.size() > 1 ? words[1] : "");
  }
}

TEST(SofttpuProgram, IsBusyWhereAnotherListens) {
  Folder folder;
  Program first(folder), second(folder);
  EXPECT_EQ(second.line(), "");
  EXPECT_EQ(second.wait(), 4);
  Peer p(first.socket());
  EXPECT_TRUE(p.negotiate());  // and the first one lives on
}

TEST(Script, ErrorsNameTheLine) {
  const std::pair<const char*, const char*> bad[] = {
      {"\n{\"at_ms\": 1}", "s:2"},
      {"{\"at_ms\": 0, \"do\": {\"cmd\": \"list\"}}\n# fine\nx", "s:3"},
      {"{\"at_ms\": -1, \"do\": {\"cmd\": \"list\"}}", "at_ms"},
      {"{\"at_ms\": 1, \"do\": {\"cmd\": \"inject\", \"fault\": {\"row\": \"Z1\"}}}", "Z1"},
      {"{\"at_ms\": 1, \"do\": {\"cmd\": \"inject\", \"fault\": {\"row\": \"M01\"}}}", "s:1"},
      {"{\"at_ms\": 1, \"do\": {\"cmd\": \"dance\"}}", "dance"},
  };
  for (const auto& [text, expect] : bad) {
    try {
      parse_script(text, "s");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(expect), std::string::npos) << e.what();
      EXPECT_EQ(e.code(), Errc::usage);
    }
  }
  EXPECT_TRUE(parse_script("", "s").empty());
}

TEST(Listener, TakesStaleSocketsOnly) {
  Folder folder;
  std::string path = folder.path + "/s";
  {
    Listener first(path);
    EXPECT_THROW(Listener second(path), Error);
    std::filesystem::rename(path, folder.path + "/kept");  // survives its owner: stale
  }
  std::filesystem::rename(folder.path + "/kept", path);
  { Listener again(path); }
  EXPECT_FALSE(std::filesystem::exists(path));
  Fd file(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  try {
    Listener l(path);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
  }
  EXPECT_THROW(Listener(std::string(200, 'x')), Error);
  try {
    Listener l(folder.path + "/no/such/folder");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::not_found);
  }
}

}  // namespace
}  // namespace kz::softtpu
