// SPDX-License-Identifier: GPL-2.0-or-later
// Function, device and firmware resets: they end, in time, and leave nothing of what was there before.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/pattern.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

struct KindOf {
  ResetKind kind;
  uint32_t reason;
};

// Config space that the driver has to bring back: command, BARs, and the control words of MSI(-X) and PCI
// Express.
std::vector<std::pair<uint32_t, uint16_t>> driver_words(ConfigSpace& config) {
  std::vector<std::pair<uint32_t, uint16_t>> words;
  auto add = [&](uint32_t offset) { words.emplace_back(offset, config.read16(offset)); };
  add(0x04);
  for (uint32_t bar = 0x10; bar < 0x28; bar += 2) add(bar);
  for (const auto& cap : walk_capabilities(config).found) {
    if (cap.extended) continue;
    if (cap.id == 0x05 || cap.id == 0x11) add(cap.offset + 2);  // MSI, MSI-X message control
    if (cap.id == 0x10) add(cap.offset + 8);                    // device control
  }
  return words;
}

class ResetCheck {
 public:
  ResetCheck(Device& device, KindOf kind, uint64_t seed) : device_(device), kind_(kind), seed_(seed) {}

  void leave_traces() {
    before_ = device_.telemetry();
    context_ = device_.create_context();
    queue_ = open_queue(device_, *context_);
    block_ = context_->alloc({65536});
    HostArea host(device_, {.size = {65536}});
    fill_payload(host.bytes(), {seed_});
    run_good(*queue_, {cmd::Copy{host.place(), at(block_->addr()), 65536}});
    if (device_.capabilities().has(Cap::hbm_physical))
      physical_ = device_.physical(*context_, block_->addr());
    context_id_ = context_->id();
    context_addr_ = block_->addr();
    device_.write_register(KZ_REG_SCRATCH, 0x5ec2e700);
    if (device_.capabilities().has(Cap::config_read)) config_ = driver_words(device_.config());
  }

  void reset() {
    const std::string name(to_string(kind_.kind));
    before_danger(name + " reset");
    const auto start = Clock::now();
    try {
      device_.reset(kind_.kind, Deadline(device_.capabilities().limits.ready_timeout + 2s));
    } catch (const Error& e) {
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      if (e.code() == Errc::timeout) say("never_ready", ms, {{"heartbeat", heartbeat_state(device_)}});
      throw;
    }
    ms_ = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    metric("reset." + name, ms_, "ms");
    queue_.reset();
    block_.reset();
    context_.reset();
  }

  void check() {
    counts();
    traces();
    config();
    works();
  }

 private:
  void say(const char* what, double ms, nlohmann::json more = nlohmann::json::object()) {
    more.update({{"kind", to_string(kind_.kind)}, {"what", what}, {"ms", ms}});
    evidence(ev::reset, more);
  }

  void counts() {
    const uint32_t count = device_.read_register(KZ_REG_RESET_COUNT),
                   reason = device_.read_register(KZ_REG_RESET_REASON);
    if (before_.reset_count && count != *before_.reset_count + 1) {
      say("count_wrong", ms_, {{"got", count}, {"want", *before_.reset_count + 1}});
      ADD_FAILURE() << "the reset count went from " << *before_.reset_count << " to " << count;
    }
    if (reason != kind_.reason) {
      say("reason_wrong", ms_, {{"got", reason}, {"want", kind_.reason}});
      ADD_FAILURE() << "the reset reason is " << reason << ", not " << kind_.reason;
    }
  }

  void kept(const std::string& what) {
    say("state_kept", ms_, {{"state", what}});
    ADD_FAILURE() << what << " survived the reset";
  }

  void traces() {
    if (device_.read_register(KZ_REG_SCRATCH) != 0) kept("the scratch register");
    const Telemetry now = device_.telemetry();
    if (now.contexts.value_or(0) != 0) kept(fmt::format("{} context(s)", *now.contexts));
    auto queue = open_queue(device_, device_.root_context());
    kz_cmd query{};
    query.opcode = KZ_OP_HBM_QUERY;
    query.u.alloc.addr = context_addr_.value;
    query.u.alloc.ctx = context_id_;
    if (device_.capabilities().has(Cap::raw_commands) &&
        run_one(*queue, {cmd::Raw{query}}).status == Status::ok)
      kept("a context's page table");
    const uint64_t whole = device_.capabilities().limits.hbm_bytes -
                           now.pages_retired.value_or(0) * device_.capabilities().limits.hbm_page;
    if (now.hbm_free && *now.hbm_free < whole) {
      kept(fmt::format("an allocation of {} bytes", whole - *now.hbm_free));
      evidence(ev::hbm_leak, {{"bytes", whole - *now.hbm_free},
                              {"cycles", 1},
                              {"slope_bytes_per_cycle", whole - *now.hbm_free}});
    }
    if (!physical_ || !device_.capabilities().limits.hbm_cleared) return;
    HostArea host(device_, {.size = {65536}});
    read_into(*queue, *physical_, host, 65536);
    if (std::ranges::all_of(host.bytes(), [](std::byte b) { return b == std::byte{0} || b == kNotRead; }))
      return;
    const auto tag = read_tag(host.bytes());
    evidence(ev::hbm_not_cleared,
             {{"after", "reset"}, {"pattern", tag && tag->seed == seed_ ? "the last owner's" : "other"}});
    kept("memory content");
  }

  void config() {
    for (const auto& [offset, value] : config_) {
      const uint16_t now = device_.config().read16(offset);
      if (now == value) continue;
      say("config_lost", ms_, {{"offset", offset}, {"got", now}, {"want", value}});
      ADD_FAILURE() << fmt::format("config word {:#x} is {:#x} after the reset, was {:#x}", offset, now,
                                   value);
    }
  }

  void works() {
    auto context = device_.create_context();
    auto queue = open_queue(device_, *context);
    copies_arrive(device_, *context, *queue, seed_ + 1);
  }

  Device& device_;
  KindOf kind_;
  uint64_t seed_;
  Telemetry before_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<QueueGuard> queue_;
  std::unique_ptr<HbmBlock> block_;
  std::optional<HbmAddr> physical_;
  uint32_t context_id_ = 0;
  HbmAddr context_addr_;
  std::vector<std::pair<uint32_t, uint16_t>> config_;
  double ms_ = 0;
};

void check_reset(Device& device, KindOf kind, uint64_t seed) {
  ResetCheck check(device, kind, seed);
  check.leave_traces();
  check.reset();
  check.check();
}

}  // namespace

KZ_TEST(boundary, reset_function,
        {.meaning = "a function-level reset ends in time, is counted, and leaves no state, no memory and a "
                    "restored config space",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::reset_function, Cap::registers, Cap::hbm_alloc, Cap::dma},
         .limit = 30s}) {
  expect_reset();
  check_reset(device(), {ResetKind::function, KZ_RR_FLR}, seed());
}

KZ_TEST(boundary, reset_device,
        {.meaning = "a device reset ends in time, is counted, and leaves no state, no memory and a restored "
                    "config space",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::reset_device, Cap::registers, Cap::hbm_alloc, Cap::dma},
         .limit = 30s}) {
  expect_reset();
  check_reset(device(), {ResetKind::device, KZ_RR_BUS}, seed());
}

KZ_TEST(boundary, reset_firmware,
        {.meaning = "a firmware reset ends in time, is counted, and leaves no state and no memory",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::reset_firmware, Cap::registers, Cap::hbm_alloc, Cap::dma},
         .limit = 30s}) {
  expect_reset();
  check_reset(device(), {ResetKind::firmware, KZ_RR_FIRMWARE}, seed());
}

KZ_TEST(boundary, reset_under_load,
        {.meaning = "a function-level reset under load: every command is accounted for, nothing writes "
                    "memory afterwards",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::reset_function, Cap::hbm_alloc, Cap::dma},
         .limit = 30s}) {
  constexpr int kQueues = 3;
  constexpr uint64_t kLen = 256 * 1024;
  expect_reset();
  HostArea host(device(), {.size = {kLen}});
  const std::byte own{0x3c};
  for (int round = 0; round < 3; ++round) {
    auto context = device().create_context();
    auto hbm = context->alloc({kLen * kQueues});
    std::vector<std::unique_ptr<QueueGuard>> queues;
    uint64_t submitted = 0;
    for (int q = 0; q < kQueues; ++q) {
      queues.push_back(open_queue(*context, {.order = 5}));
      for (int i = 0; i < 24; ++i, ++submitted) {
        const Place there = at(hbm->addr() + q * kLen);
        queues[q]->submit(
            {i % 2 ? Work(cmd::Copy{there, host.place(), kLen}) : Work(cmd::Fill{there, kLen, 0x99})}, true);
      }
    }
    for (auto& queue : queues) queue->ring();
    if (queues[0]->wait(Deadline(2s)).empty()) queues[0]->give_up(2s);  // work is under way
    before_danger("function-level reset under load");
    device().reset(ResetKind::function, Deadline(caps().limits.ready_timeout + 2s));
    std::ranges::fill(host.bytes(), own);
    uint64_t accounted = 0;
    for (auto& queue : queues) {
      try {
        queue->poll();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Errc::gone) << e.what();
      }
      accounted += queue->audit().completed + queue->audit().dropped;
    }
    if (accounted != submitted)
      evidence(
          ev::audit,
          {{"field", "unaccounted"}, {"count", submitted - std::min(accounted, submitted)}, {"queue", -1}});
    EXPECT_EQ(accounted, submitted) << "commands that were in flight are missing in the account";
    queues.clear();
    auto after = device().create_context();
    auto queue = open_queue(*after);
    for (int i = 0; i < 20; ++i) run_good(*queue, {cmd::Nop{}});
    const auto written = std::ranges::count_if(host.bytes(), [&](std::byte b) { return b != own; });
    if (written)
      evidence(ev::data_rewritten, {{"after_ns", 0}, {"bytes", written}, {"path", "hbm>host after reset"}});
    EXPECT_EQ(written, 0) << "a copy from before the reset wrote host memory after it";
  }
}

}  // namespace kz::test
