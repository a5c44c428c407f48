// SPDX-License-Identifier: GPL-2.0-or-later
// An engine on a workbench: host memory made of windows, and short ways to say commands.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "shim/uapi/kz_regs.h"
#include "tools/softtpu/engine.h"

namespace kz::softtpu::rig {

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();

class Bus final : public HostBus {
 public:
  struct Window {
    uint64_t iova;
    std::vector<std::byte> bytes;
    bool readable = true, writable = true, mapped = true;
    bool shared = true;  // false: reached by messages only
  };

  Window& add(uint64_t iova, uint64_t size) {
    return windows_.emplace_back(Window{iova, std::vector<std::byte>(size)});
  }
  Window& at(size_t i) { return windows_[i]; }

  bool read(uint64_t iova, std::span<std::byte> out) override {
    std::byte* p = find(iova, out.size(), false);
    if (p != nullptr) std::memcpy(out.data(), p, out.size());
    return p != nullptr;
  }
  bool write(uint64_t iova, std::span<const std::byte> in) override {
    std::byte* p = find(iova, in.size(), true);
    if (p != nullptr) std::memcpy(p, in.data(), in.size());
    return p != nullptr;
  }
  std::byte* acquire(uint64_t iova, uint64_t len, bool for_write) override {
    std::byte* p = find(iova, len, for_write);
    for (auto& w : windows_)
      if (p >= w.bytes.data() && p < w.bytes.data() + w.bytes.size() && !w.shared) return nullptr;
    held += p != nullptr;
    return p;
  }
  void release() override { --held; }
  std::byte* acquire_ignoring_rights(uint64_t iova, uint64_t len) override {
    for (auto& w : windows_)
      if (iova >= w.iova && iova - w.iova < w.bytes.size() && len <= w.bytes.size() - (iova - w.iova)) {
        ++held;
        return w.bytes.data() + (iova - w.iova);
      }
    return nullptr;
  }

  std::atomic<int> held{0};

 private:
  std::byte* find(uint64_t iova, uint64_t len, bool for_write) {
    for (auto& w : windows_) {
      bool inside =
          iova >= w.iova && iova - w.iova < w.bytes.size() && len <= w.bytes.size() - (iova - w.iova);
      if (inside && w.mapped && (for_write ? w.writable : w.readable))
        return w.bytes.data() + (iova - w.iova);
    }
    return nullptr;
  }

  std::vector<Window> windows_;
};

inline constexpr uint64_t host = 0x10000;            // first window: 8 MiB
inline constexpr uint64_t high = uint64_t{9} << 32;  // second window: 1 MiB, above 4 GiB
inline constexpr uint64_t hbm_bytes = uint64_t{64} << 20;
inline constexpr uint64_t page = 65536;
inline constexpr uint64_t all_pages = hbm_bytes / page;

class Rig : public ::testing::Test {
 protected:
  explicit Rig(EngineOptions o = {.hbm_bytes = hbm_bytes}) {
    bus.add(host, 8 << 20);
    bus.add(high, 1 << 20);
    engine = std::make_unique<Engine>(o, faults, bus);
  }

  int plant(const char* row, nlohmann::json params = nlohmann::json::object(),
            nlohmann::json trigger = nullptr) {
    nlohmann::json j{{"row", row}, {"params", params}};
    if (!trigger.is_null()) j["trigger"] = trigger;
    return faults.inject(j, false);
  }

  Outcome run(const kz_cmd& c, uint32_t context = 0, uint16_t queue = 0) {
    return engine->execute(c, {queue, context, nullptr});
  }
  // For commands that must succeed: their result.
  uint64_t ok(const kz_cmd& c, uint32_t context = 0) {
    Outcome o = run(c, context);
    EXPECT_EQ(o.status, KZ_ST_OK) << "opcode " << int(c.opcode);
    EXPECT_EQ(o.kind, Outcome::Kind::done);
    return o.result;
  }

  static kz_cmd command(uint8_t opcode) {
    kz_cmd c{};
    c.opcode = opcode;
    return c;
  }
  static kz_cmd copy(uint8_t from, uint64_t src, uint8_t to, uint64_t dst, uint64_t len) {
    kz_cmd c = command(KZ_OP_COPY);
    c.u.copy.src = src;
    c.u.copy.dst = dst;
    c.u.copy.len = len;
    c.u.copy.src_space = from;
    c.u.copy.dst_space = to;
    return c;
  }
  static kz_cmd to_hbm(uint64_t iova, uint64_t addr, uint64_t len) {
    return copy(KZ_SP_HOST, iova, KZ_SP_HBM, addr, len);
  }
  static kz_cmd to_host(uint64_t addr, uint64_t iova, uint64_t len) {
    return copy(KZ_SP_HBM, addr, KZ_SP_HOST, iova, len);
  }
  static kz_cmd fill(uint64_t addr, uint64_t len, uint64_t pattern, uint8_t space = KZ_SP_HBM) {
    kz_cmd c = command(KZ_OP_FILL);
    c.u.fill.dst = addr;
    c.u.fill.len = len;
    c.u.fill.pattern = pattern;
    c.u.fill.dst_space = space;
    return c;
  }
  static kz_cmd march(uint64_t addr, uint64_t len, std::vector<uint8_t> ops, uint8_t order = KZ_MARCH_UP) {
    kz_cmd c = command(KZ_OP_MARCH);
    c.u.march.addr = addr;
    c.u.march.len = len;
    c.u.march.nops = static_cast<uint8_t>(ops.size());
    c.u.march.order = order;
    std::copy(ops.begin(), ops.end(), c.u.march.ops);
    return c;
  }
  static kz_cmd alloc(uint64_t len, uint32_t context = 0) {
    kz_cmd c = command(KZ_OP_HBM_ALLOC);
    c.u.alloc.len = len;
    c.u.alloc.ctx = context;
    return c;
  }
  static kz_cmd memory(uint8_t opcode, uint64_t addr, uint32_t context = 0) {
    kz_cmd c = command(opcode);
    c.u.alloc.addr = addr;
    c.u.alloc.ctx = context;
    return c;
  }
  uint32_t new_context() { return static_cast<uint32_t>(ok(command(KZ_OP_CTX_CREATE))); }
  uint64_t free_pages() { return ok(command(KZ_OP_HBM_STAT)) & 0xffffffff; }
  uint64_t retired_pages() { return ok(command(KZ_OP_HBM_STAT)) >> 32; }

  // Physical memory as the trapped aperture shows it.
  void poke(uint64_t addr, uint64_t value) {
    engine->aperture_write(addr, std::as_bytes(std::span(&value, 1)));
  }
  uint64_t peek(uint64_t addr) {
    uint64_t v = 0;
    engine->aperture_read(addr, std::as_writable_bytes(std::span(&v, 1)));
    return v;
  }
  std::byte* at_host(uint64_t iova) { return bus.at(0).bytes.data() + (iova - host); }
  kz_telemetry telemetry() {
    kz_telemetry t;
    engine->read_telemetry(t);
    return t;
  }
  // Ticks until the condition holds; false when the budget passes.
  template <class F>
  bool tick_until(F done, std::chrono::milliseconds budget) {
    auto end = std::chrono::steady_clock::now() + budget;
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      engine->tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  FaultBoard faults;
  Bus bus;
  std::unique_ptr<Engine> engine;
};

}  // namespace kz::softtpu::rig
