// SPDX-License-Identifier: GPL-2.0-or-later
// The program softtpu as a user starts it, its script and its sockets in the file system.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <stdexcept>

#include "shim/base/error.h"
#include "tests/unit/softtpu_front_peer.h"
#include "tools/softtpu/script.h"
#include "tools/softtpu/socket.h"

namespace kz::softtpu {
namespace {

using namespace rig;

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
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  // "ready SOCKET", or empty when it ended before.
  const std::string& line() const { return line_; }
  void terminate() { ::kill(pid_, SIGTERM); }
  // Its exit code; after 30 s it is killed.
  int wait() {
    int status = 0;
    if (!Client::eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, 30s)) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
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
