// SPDX-License-Identifier: GPL-2.0-or-later
// A reference TPU by hand for the tests of its driver: registers in a map, rings read and written as
// shim/uapi/kz_cmd.h says, and a script that decides what to do with each command. One thread; everything
// happens when the doorbell rings.
#pragma once

#include <linux/pci_regs.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/tpu/core.h"
#include "shim/tpu/queue.h"
#include "shim/tpu/transport.h"
#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_regs.h"

namespace kz::tpu::fake {

class NoConfig final : public ConfigSpace {
 public:
  uint32_t size() const override { return 256; }
  uint8_t read8(uint32_t) override { return 0; }
  uint16_t read16(uint32_t) override { return 0; }
  uint32_t read32(uint32_t) override { return 0; }
  void write8(uint32_t, uint8_t) override {}
  void write16(uint32_t, uint16_t) override {}
  void write32(uint32_t, uint32_t) override {}
};

class FakeTpu final : public Transport {
 public:
  // The device's side of one queue.
  struct Ring {
    uint64_t sq = 0, cq = 0, record = 0;
    uint32_t entries = 0, fetched = 0, written = 0;
    uint16_t id = 0;
    unsigned vector = 0;
  };
  using Script = std::function<void(FakeTpu&, Ring&, const kz_cmd&)>;

  FakeTpu() {
    for (int v = 0; v < 4; ++v) events_.push_back(make_eventfd(false));
    registers[KZ_REG_MAGIC] = KZ_MAGIC;
  }
  Script script = [](FakeTpu& t, Ring& r, const kz_cmd& c) { t.complete(r, c); };
  std::map<uint32_t, uint32_t> registers;
  std::atomic<bool> open{true};
  bool all_ones = false, silent = false;
  unsigned mappings = 0;
  std::optional<uint32_t> refuse_state;  // what an enabled queue's STATE becomes, instead of running

  // ---- for scripts ----
  kz_cqe cqe(const Ring& r, const kz_cmd& c) const {
    return {0, static_cast<uint16_t>(r.fetched), r.id, c.cid, KZ_ST_OK << 1};
  }
  // Writes a completion into the next slot, status with the phase last.
  void post(Ring& r, kz_cqe cqe) {
    bool phase = (r.written / r.entries) % 2 == 0;
    cqe.status = static_cast<uint16_t>((cqe.status & ~1u) | (phase ? 1u : 0u));
    place(r, r.written++, cqe);
  }
  void place(Ring& r, uint32_t at, const kz_cqe& cqe) {
    auto* slot = reinterpret_cast<kz_cqe*>(memory(r.cq + at % r.entries * sizeof cqe, sizeof cqe, true));
    std::memcpy(slot, &cqe, offsetof(kz_cqe, status));
    __atomic_store_n(&slot->status, cqe.status, __ATOMIC_RELEASE);
  }
  void raise(unsigned vector, uint64_t n = 1) { signal_eventfd(events_.at(vector).get(), n); }
  void complete(Ring& r, const kz_cmd& c) {
    post(r, cqe(r, c));
    if ((c.flags & KZ_CMD_NOIRQ) == 0) raise(r.vector);
  }
  Ring& ring(uint16_t queue) { return rings_.at(queue); }

  // ---- Transport ----
  const std::string& name() const override { return name_; }
  uint32_t read32(uint32_t offset) override {
    check();
    return all_ones ? 0xffffffff : registers[offset];
  }
  void write32(uint32_t offset, uint32_t value) override {
    check();
    if (offset >= KZ_REG_DOORBELL(0)) return serve(static_cast<uint16_t>((offset - KZ_REG_DOORBELL(0)) / 8));
    registers[offset] = value;
    if (offset >= KZ_REG_QUEUE(0) && offset < KZ_REG_TELEMETRY && offset % 0x40 == KZ_Q_CTRL)
      control(offset, value);
  }
  void read_block(uint32_t, std::span<std::byte>) override {}
  std::optional<uint32_t> glance(uint32_t offset, std::chrono::nanoseconds) override {
    if (silent) return std::nullopt;
    return read32(offset);
  }
  ConfigSpace& config() override { return config_; }
  Aperture& aperture(uint64_t) override { throw Error({Errc::unsupported, "map", "aperture", "", "", 0}); }
  int doorbell_fd(unsigned) override { return -1; }
  unsigned vectors() const override { return static_cast<unsigned>(events_.size()); }
  int vector_fd(unsigned vector) override { return events_.at(vector).get(); }
  bool exact_interrupts() const override { return true; }
  void arm_interrupts() override {}
  std::optional<Errc> map_error;  // what the next mapping ends with, after it was made
  void dma_map(const DmaMapping& m) override {
    maps_[m.iova] = m;
    ++mappings;
    if (auto code = std::exchange(map_error, std::nullopt)) throw Error({*code, "map", name_, "as told", "", 0});
  }
  void dma_unmap(const DmaMapping& m, std::optional<std::chrono::nanoseconds> budget) override {
    if (budget && *budget == 0ns) return;
    maps_.erase(m.iova);
    --mappings;
  }
  void device_reset(std::chrono::nanoseconds) override {}
  bool alive() const override { return open; }
  void close() override { open = false; }

 private:
  void check() const {
    if (!open) throw Error({Errc::gone, "reach", name_, "closed", "", 0});
    if (silent) throw Error({Errc::timeout, "reach", name_, "no answer", "", 0});
  }
  std::byte* memory(uint64_t iova, uint64_t n, bool write) {
    auto it = maps_.upper_bound(iova);
    if (it == maps_.begin()) throw std::runtime_error("DMA to unmapped memory");
    const DmaMapping& m = std::prev(it)->second;
    if (iova - m.iova + n > m.bytes.size()) throw std::runtime_error("DMA past a mapping");
    if (!(write ? m.device_writes : m.device_reads)) throw std::runtime_error("DMA without the right");
    return m.bytes.data() + (iova - m.iova);
  }
  uint64_t pair(uint32_t lo) { return registers[lo] | uint64_t{registers[lo + 4]} << 32; }
  void control(uint32_t offset, uint32_t value) {
    auto id = static_cast<uint16_t>((offset - KZ_REG_QUEUE(0)) / 0x40);
    if ((value & KZ_QCTRL_RESET) != 0) {
      registers[offset] = 0;
      registers[offset + KZ_Q_STATE] = KZ_QSTATE_OFF;
      rings_.erase(id);
    } else if ((value & KZ_QCTRL_ENABLE) != 0 && !rings_.contains(id)) {  // enabled already: no new setup
      registers[offset + KZ_Q_STATE] = refuse_state.value_or(KZ_QSTATE_RUN);
      rings_[id] = {pair(offset + KZ_Q_SQ_LO),
                    pair(offset + KZ_Q_CQ_LO),
                    pair(offset + KZ_Q_DBREC_LO),
                    1u << registers[offset + KZ_Q_ORDER],
                    0,
                    0,
                    id,
                    registers[offset + KZ_Q_VECTOR]};
    }
  }
  void serve(uint16_t id) {
    auto it = rings_.find(id);
    if (it == rings_.end()) return;
    Ring& r = it->second;
    auto* record = reinterpret_cast<const kz_dbrec*>(memory(r.record, sizeof(kz_dbrec), false));
    while (r.fetched != __atomic_load_n(&record->sq_tail, __ATOMIC_ACQUIRE)) {
      kz_cmd c;
      std::memcpy(&c, memory(r.sq + r.fetched % r.entries * sizeof c, sizeof c, false), sizeof c);
      bool expected = (r.fetched / r.entries) % 2 == 0;
      if (((c.flags & KZ_CMD_PHASE) != 0) != expected)
        throw std::runtime_error("the phase of a command is wrong");
      ++r.fetched;
      registers[KZ_REG_QUEUE(id) + KZ_Q_SQ_HEAD] = r.fetched;
      script(*this, r, c);
    }
  }

  std::string name_ = "fake";
  NoConfig config_;
  std::vector<Fd> events_;
  std::map<uint64_t, DmaMapping> maps_;
  std::map<uint16_t, Ring> rings_;
};

}  // namespace kz::tpu::fake
