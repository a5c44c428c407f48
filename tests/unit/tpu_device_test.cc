// SPDX-License-Identifier: GPL-2.0-or-later
// The user-mode driver against a real softtpu: every call of Device, resets, loss of the device.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "shim/base/error.h"
#include "shim/device.h"
#include "shim/softtpu_process.h"
#include "shim/uapi/kz_regs.h"
#include "tests/harness/snapshot.h"
#include "tests/unit/code_of.h"
#include "tests/unit/tpu_device_helpers.h"

namespace kz {
namespace {

// One softtpu for a test, and a device on it.
class TpuDeviceTest : public ::testing::Test {
 protected:
  TpuDeviceTest() { ::setenv("KANGZAO_BIN_DIR", KZ_BIN_DIR, 1); }
  void start(std::map<std::string, std::string> options = {{"hbm", "64M"}},
             std::vector<std::string> extra = {}) {
    device.reset();
    process.reset();
    process = std::make_unique<SoftTpuProcess>(
        SoftTpuSpec{.options = std::move(options), .directory = {}, .extra = std::move(extra)});
    device = open();
  }
  std::unique_ptr<Device> open(const OpenOptions& options = {}) {
    // The server may be busy with the end of the client before.
    for (Deadline deadline(5s);; std::this_thread::yield()) {
      try {
        return open_device("vfio-user:" + process->socket(), options);
      } catch (const Error& e) {
        if (e.code() != Errc::busy || deadline.passed()) throw;
      }
    }
  }
  // One line to the control socket, one line back.
  std::string control(const std::string& line) {
    Fd s(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    process->control().copy(address.sun_path, sizeof address.sun_path - 1);
    if (::connect(s.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return "no connection";
    std::string out = line + "\n";
    if (::send(s.get(), out.data(), out.size(), MSG_NOSIGNAL) < 0) return "no send";
    std::string back;
    char c;
    while (::recv(s.get(), &c, 1, 0) == 1 && c != '\n') back += c;
    return back;
  }
  void inject(const std::string& row, const std::string& more = "") {
    auto answer = control(R"({"cmd": "inject", "fault": {"row": ")" + row + "\"" + more + "}}");
    ASSERT_NE(answer.find("\"ok\""), std::string::npos) << answer;
    ASSERT_EQ(answer.find("error"), std::string::npos) << answer;
  }
  std::unique_ptr<SoftTpuProcess> process;
  std::unique_ptr<Device> device;
};

TEST_F(TpuDeviceTest, SaysWhatItIs) {
  start({{"hbm", "64M"}, {"serial", "0123456789abcdef"}});
  const Identity& id = device->identity();
  EXPECT_EQ(id.vendor, 0x1234);
  EXPECT_EQ(id.device, 0x4b5a);
  EXPECT_EQ(id.class_code, 0x120000u);
  EXPECT_EQ(id.serial, "01-23-45-67-89-ab-cd-ef");
  EXPECT_EQ(id.stable_id(), "dsn-01-23-45-67-89-ab-cd-ef");
  const Capabilities& caps = device->capabilities();
  EXPECT_EQ(caps.limits.hbm_bytes, uint64_t{64} << 20);
  EXPECT_EQ(caps.limits.hbm_page, 65536u);
  EXPECT_EQ(caps.limits.queues, 15) << "16, and the driver keeps one";
  EXPECT_EQ(caps.limits.vectors, 16);
  EXPECT_TRUE(caps.has(Cap::ecc));
  EXPECT_TRUE(caps.has(Cap::reset_function));
  EXPECT_FALSE(caps.has(Cap::node));
  EXPECT_FALSE(caps.why_not.at(Cap::node).empty());
  EXPECT_EQ(device->read_register(KZ_REG_MAGIC), KZ_MAGIC);
  EXPECT_EQ(device->config().read16(0), 0x1234);
  Telemetry t = device->telemetry();
  EXPECT_FALSE(t.all_ones);
  EXPECT_EQ(t.hbm_bytes, uint64_t{64} << 20);
  start({{"hbm", "64M"}, {"ecc", "off"}, {"queues", "8"}});
  EXPECT_FALSE(device->capabilities().has(Cap::ecc));
  EXPECT_NE(device->capabilities().why_not.at(Cap::ecc).find("FEAT"), std::string::npos);
  EXPECT_EQ(device->capabilities().limits.queues, 7);
}

TEST_F(TpuDeviceTest, OpensToLookOnly) {
  start();
  device.reset();
  device = open({.bring_up = false});
  EXPECT_EQ(device->read_register(KZ_REG_MAGIC), KZ_MAGIC);
  EXPECT_EQ(device->read_register(KZ_REG_CTRL), 0u);
  EXPECT_TRUE(device->telemetry().firmware_version);
  EXPECT_EQ(code_of([&] { device->create_context(); }), Errc::gone);
  EXPECT_EQ(code_of([&] { device->root_context().open_queue(); }), Errc::gone);
  device->reset(ResetKind::function, Deadline(5s));
  round_trip(*device, {.size = 64_KiB});
}

TEST_F(TpuDeviceTest, MovesDataByEveryWay) {
  start();
  for (uint64_t n : {uint64_t{1}, uint64_t{63}, uint64_t{4097}, uint64_t{300000}, (uint64_t{1} << 20) + 1})
    for (bool by_message : {false, true}) round_trip(*device, {.size = {n}, .by_message = by_message});
  round_trip(*device, {.size = 64_KiB, .at = Iova{(uint64_t{1} << 32) - 8192}});
  round_trip(*device, {.size = 64_KiB, .at = Iova{uint64_t{1} << 45}});
}

TEST_F(TpuDeviceTest, IsolatesContexts) {
  start();
  auto a = device->create_context(), b = device->create_context();
  EXPECT_NE(a->id(), b->id());
  auto block = a->alloc(128_KiB);
  EXPECT_EQ(block->size(), uint64_t{128} << 10);
  auto queue = b->open_queue();
  EXPECT_EQ(run(*queue, {cmd::Fill{at(block->addr()), 64, 1}}).status, Status::hbm_fault);
  HbmAddr physical = device->physical(*a, block->addr());
  auto mine = a->open_queue();
  run_ok(*mine, {cmd::Fill{at(block->addr()), 64, 0x1122334455667788}});
  uint64_t seen = 0;
  device->aperture().read(physical.value, std::as_writable_bytes(std::span(&seen, 1)));
  EXPECT_EQ(seen, 0x1122334455667788u);
  EXPECT_EQ(block->free(), Status::ok);
  EXPECT_EQ(code_of([&] { block->free(); }), Errc::usage);
  EXPECT_NE(a->free_raw(block->addr()), Status::ok);
  EXPECT_EQ(code_of([&] { a->alloc(1_GiB); }), Errc::no_memory);
  EXPECT_NO_THROW(a->alloc(64_KiB));
}

TEST_F(TpuDeviceTest, ObjectsMayOutliveEachOther) {
  start();
  auto context = device->create_context();
  auto block = context->alloc(1_MiB);
  auto queue = context->open_queue();
  uint32_t old = context->id();
  context.reset();  // takes its memory along
  auto next = device->create_context();
  auto theirs = next->alloc(1_MiB);
  if (next->id() == old) {
    EXPECT_EQ(theirs->addr(), block->addr()) << "the case that this test is about";
  }
  block.reset();  // must not free the new owner's memory
  auto again = next->open_queue();
  EXPECT_EQ(run(*again, {cmd::Fill{at(theirs->addr()), 64, 1}}).status, Status::ok);
  auto buffer = device->dma_buffer({.size = 4_KiB});
  device.reset();
  EXPECT_EQ(code_of([&] { again->submit({cmd::Nop{}}); }), Errc::gone);
  EXPECT_EQ(code_of([&] { next->alloc(64_KiB); }), Errc::gone);
  buffer->bytes()[0] = std::byte{1};
  device = open();  // the connection is free although objects of the old one live
  round_trip(*device, {.size = 4_KiB});
}

TEST_F(TpuDeviceTest, MapsTheAperture) {
  start();
  Aperture& a = device->aperture();
  EXPECT_EQ(a.size(), uint64_t{64} << 20);
  ASSERT_FALSE(a.mapped().empty());
  uint64_t mapped = 0;
  for (const auto& piece : a.mapped()) mapped += piece.bytes.size();
  EXPECT_EQ(mapped, a.size());
  uint64_t word = 0x0123456789abcdef, back = 0;
  std::memcpy(a.mapped()[0].bytes.data() + 4096, &word, 8);
  a.read(a.mapped()[0].offset + 4096, std::as_writable_bytes(std::span(&back, 1)));
  EXPECT_EQ(back, word);
  EXPECT_EQ(code_of([&] { a.read(a.size() - 4, std::as_writable_bytes(std::span(&back, 1))); }), Errc::usage);
  // A page with a cell fault is never mapped: every access to it must meet the model.
  start({{"hbm", "64M"}}, {"--fault", R"({"row": "M01", "params": {"addr_frac": 0.5, "bit": 3}})"});
  mapped = 0;
  for (const auto& piece : device->aperture().mapped()) mapped += piece.bytes.size();
  EXPECT_LT(mapped, device->aperture().size());
  EXPECT_GE(mapped, device->aperture().size() - (uint64_t{1} << 20));
}

TEST_F(TpuDeviceTest, CountsInterruptsPerVector) {
  for (const char* irq : {"msix", "msi"}) {
    start({{"hbm", "64M"}, {"irq", irq}});
    auto context = device->create_context();
    auto queue = context->open_queue({.order = 3, .vector = 9});
    auto before = device->interrupt_counts();
    for (int i = 0; i < 50; ++i) run_ok(*queue, {cmd::Nop{}});
    auto after = device->interrupt_counts();
    for (size_t v = 0; v < after.size(); ++v)
      EXPECT_EQ(after[v] - before[v], v == 9 ? 50u : 0u) << irq << " vector " << v;
    EXPECT_TRUE(queue->audit().clean());
    EXPECT_EQ(queue->audit().interrupts, 50u);
    // Masked in the device: completions come without, and one interrupt stands for them when the mask goes.
    device->write_register(KZ_REG_IRQ_MASK, 1u << 9);
    EXPECT_EQ(run(*queue, {cmd::Nop{}}).status, Status::ok);
    EXPECT_EQ(device->interrupt_counts()[9] - before[9], 50u);
    device->write_register(KZ_REG_IRQ_MASK, 0);
    for (Deadline d(2s); device->interrupt_counts()[9] - before[9] == 50 && !d.passed();)
      std::this_thread::yield();
    EXPECT_EQ(device->interrupt_counts()[9] - before[9], 51u);
  }
}

TEST_F(TpuDeviceTest, RunsAHundredThousandCommands) {
  start();
  auto context = device->create_context();
  auto queue = context->open_queue({.order = 8});
  constexpr uint64_t total = 100000;
  uint64_t sent = 0, seen = 0;
  uint64_t fds = test::open_fds();
  for (Deadline deadline(60s); seen < total && !deadline.passed();) {
    while (sent < total && queue->outstanding() < queue->depth()) {
      queue->submit({cmd::Nop{}}, true);
      ++sent;
    }
    for (const auto& c : queue->wait(Deadline(5s))) {
      ASSERT_EQ(c.ticket, ++seen);
      ASSERT_EQ(c.status, Status::ok);
    }
  }
  EXPECT_EQ(seen, total);
  EXPECT_TRUE(queue->audit().clean());
  EXPECT_EQ(test::open_fds(), fds);
}

TEST_F(TpuDeviceTest, QueuesWorkFromTheirOwnThreads) {
  start();
  auto context = device->create_context();
  auto work = [&] {
    for (int round = 0; round < 10; ++round) {
      auto queue = context->open_queue();
      for (int i = 0; i < 50; ++i) run_ok(*queue, {cmd::Nop{}});
      EXPECT_TRUE(queue->audit().clean());
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (int i = 0; i < 20; ++i) {
    auto block = context->alloc(64_KiB);
    device->interrupt_counts();
  }
  for (auto& t : threads) t.join();
}

TEST_F(TpuDeviceTest, OpensEveryQueueAndNoMore) {
  start();
  auto context = device->create_context();
  std::vector<std::unique_ptr<Queue>> queues;
  for (uint16_t i = 0; i < device->capabilities().limits.queues; ++i) {
    queues.push_back(context->open_queue({.order = 1}));
    EXPECT_EQ(queues.back()->id(), i);
  }
  EXPECT_EQ(code_of([&] { context->open_queue(); }), Errc::busy);
  for (auto& q : queues) run_ok(*q, {cmd::Nop{}});
  queues.erase(queues.begin() + 3);
  EXPECT_EQ(context->open_queue()->id(), 3);
  EXPECT_EQ(code_of([&] { context->open_queue({.order = 30}); }), Errc::usage);
}

TEST_F(TpuDeviceTest, ResetsEveryWay) {
  start();
  for (ResetKind kind : {ResetKind::function, ResetKind::device, ResetKind::firmware}) {
    SCOPED_TRACE(std::string(to_string(kind)));
    auto context = device->create_context();
    auto queue = context->open_queue();
    auto block = context->alloc(1_MiB);
    auto buffer = device->dma_buffer({.size = 4_KiB});
    device->write_register(KZ_REG_SCRATCH, 7);
    for (int i = 0; i < 8; ++i) queue->submit({cmd::Fill{at(block->addr()), 1 << 20, 1}});
    uint32_t before = device->read_register(KZ_REG_RESET_COUNT);
    device->reset(kind, Deadline(5s));
    EXPECT_EQ(device->read_register(KZ_REG_RESET_COUNT), before + 1);
    EXPECT_EQ(device->read_register(KZ_REG_SCRATCH), 0u);
    EXPECT_NE(device->config().read16(4) & 6, 0) << "memory and bus master are on again";
    // What was open is dead, says so, and touches nothing.
    for (const auto& c : queue->poll()) EXPECT_EQ(c.status, Status::lost);
    EXPECT_EQ(queue->outstanding(), 0u);
    EXPECT_EQ(code_of([&] { queue->submit({cmd::Nop{}}); }), Errc::gone);
    EXPECT_EQ(code_of([&] { context->alloc(64_KiB); }), Errc::gone);
    EXPECT_EQ(block->free(), Status::lost);
    auto fresh = device->create_context();
    auto q2 = fresh->open_queue();
    queue.reset();
    context.reset();
    EXPECT_EQ(run(*q2, {cmd::Nop{}}).status, Status::ok) << "the death of an old queue stopped a new one";
    run_ok(*q2, {cmd::Fill{at(buffer->iova()), 4096, 0x55}});
    EXPECT_EQ(buffer->bytes()[4095], std::byte{0})
        << "little-endian pattern 0x55: only every eighth byte is set";
    EXPECT_EQ(buffer->bytes()[8], std::byte{0x55}) << "DMA buffers stay mapped over a reset";
    EXPECT_TRUE(q2->audit().clean());
  }
}

TEST_F(TpuDeviceTest, ReportsAResetThatDoesNotEnd) {
  start();
  inject("F05");
  auto start_time = Clock::now();
  try {
    device->reset(ResetKind::function, Deadline(400ms));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::timeout);
    EXPECT_NE(std::string(e.what()).find("STATUS (0x0064)"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("read 0x4"), std::string::npos) << e.what();
  }
  EXPECT_LT(Clock::now() - start_time, 3s);
  EXPECT_EQ(code_of([&] { device->create_context(); }), Errc::gone);
  control(R"({"cmd": "clear"})");
  device->reset(ResetKind::device, Deadline(5s));
  round_trip(*device, {.size = 4_KiB});
}

TEST_F(TpuDeviceTest, AnAllocationThatHangsEndsInTimeAndTheDriverGoesOn) {
  start();
  auto context = device->create_context();
  auto block = context->alloc(64_KiB);
  inject("F18");
  auto begin = Clock::now();
  try {
    context->alloc(1_GiB);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::timeout) << e.what();
    EXPECT_NE(std::string(e.what()).find("1 GiB of HBM"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("fetched"), std::string::npos) << e.what();
  }
  EXPECT_LT(Clock::now() - begin, 6s);
  EXPECT_EQ(context->alloc(64_KiB)->size(), 65536u);
  EXPECT_EQ(block->free(), Status::ok);
}

TEST_F(TpuDeviceTest, FindsOutThatTheDeviceWasLostAndComesBack) {
  start();
  auto context = device->create_context();
  auto queue = context->open_queue();
  control(R"({"cmd": "set", "gone": true})");
  queue->submit({cmd::Nop{}});
  auto begin = Clock::now();
  try {
    queue->wait(Deadline(20s));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::gone);
    EXPECT_NE(std::string(e.what()).find("ones"), std::string::npos);
  }
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(device->read_register(KZ_REG_MAGIC), 0xffffffffu);
  EXPECT_TRUE(device->telemetry().all_ones);
  EXPECT_EQ(code_of([&] { device->recover(Deadline(100ms)); }), Errc::gone);
  control(R"({"cmd": "set", "gone": false})");
  device->recover(Deadline(5s));
  round_trip(*device, {.size = 4_KiB});
}

TEST_F(TpuDeviceTest, DeathOfTheServerIsSeenAtOnce) {
  start();
  auto context = device->create_context();
  auto queue = context->open_queue();
  auto block = context->alloc(16_MiB);
  auto buffer = device->dma_buffer({.size = 1_MiB, .by_message = true});
  for (int i = 0; i < 30; ++i)
    queue->submit({cmd::Copy{at(buffer->iova()), at(block->addr()), 1 << 20}}, true);
  queue->ring();
  ::kill(process->pid(), SIGKILL);
  auto begin = Clock::now();
  Errc code = code_of([&] {
    for (;;) queue->wait(Deadline(20s));
  });
  EXPECT_EQ(code, Errc::gone);
  EXPECT_LT(Clock::now() - begin, 2s);
  EXPECT_EQ(code_of([&] { device->read_register(KZ_REG_MAGIC); }), Errc::gone);
  EXPECT_EQ(code_of([&] { context->alloc(64_KiB); }), Errc::gone);
  EXPECT_EQ(code_of([&] { device->recover(Deadline(1s)); }), Errc::gone);
  EXPECT_EQ(code_of([&] { device->dma_buffer({.size = 4_KiB}); }), Errc::gone);
  begin = Clock::now();
  block.reset(), queue.reset(), context.reset(), buffer.reset(), device.reset();
  EXPECT_LT(Clock::now() - begin, 1s);
}

TEST_F(TpuDeviceTest, AStoppedServerHoldsNobodyUpForLong) {
  start();
  auto context = device->create_context();
  auto queue = context->open_queue();
  auto block = context->alloc(1_MiB);
  auto buffer = device->dma_buffer({.size = 4_KiB});
  ::kill(process->pid(), SIGSTOP);
  for (Deadline deadline(5s); state_of(process->pid()) != 'T' && !deadline.passed();)
    std::this_thread::yield();
  queue->submit({cmd::Nop{}});
  auto begin = Clock::now();
  EXPECT_TRUE(queue->wait(Deadline(200ms)).empty());
  EXPECT_LT(Clock::now() - begin, 2s);
  begin = Clock::now();
  block.reset(), queue.reset(), context.reset(), buffer.reset(), device.reset();
  EXPECT_LT(Clock::now() - begin, 4s) << "destructors";
  ::kill(process->pid(), SIGCONT);
}

TEST_F(TpuDeviceTest, ASecondUserIsToldThatItIsBusy) {
  start();
  auto queue = device->root_context().open_queue();
  EXPECT_EQ(code_of([&] { open_device("vfio-user:" + process->socket()); }), Errc::busy);
  run_ok(*queue, {cmd::Nop{}});
}

TEST_F(TpuDeviceTest, LeavesNothingOpen) {
  start();
  device.reset();
  uint64_t before = test::open_fds();
  for (int i = 0; i < 5; ++i) {
    device = open();
    round_trip(*device, {.size = 64_KiB});
    device->aperture();
    device->reset(ResetKind::firmware, Deadline(5s));
    device.reset();
    EXPECT_EQ(test::open_fds(), before);
  }
}

}  // namespace
}  // namespace kz
