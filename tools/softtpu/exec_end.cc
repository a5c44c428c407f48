// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/exec_end.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kz::softtpu {
namespace {

// Fault D08: the DMA engine's address register is too short.
uint64_t bus_address(Core& core, uint64_t iova) {
  return (iova >> 32) != 0 && core.faults.due(Row::D08) != nullptr ? iova & 0xffffffff : iova;
}

// What happens to an access that the bus refused: faults D12, D16 and D17, else the error.
uint16_t refused(Core& core, uint64_t iova, std::byte* data, uint64_t len, bool write) {
  const Fault* f = write ? core.faults.due(Row::D16) : nullptr;
  if (f == nullptr) f = core.faults.due(Row::D17);
  if (f != nullptr) {
    if (std::byte* host = core.bus.acquire_ignoring_rights(iova, len)) {
      std::memcpy(write ? host : data, write ? data : host, len);
      core.bus.release();
      return f->uparam("report_ok") != 0 ? KZ_ST_OK : KZ_ST_DMA_FAULT;
    }
  }
  if (core.faults.due(Row::D12) == nullptr) return KZ_ST_DMA_FAULT;
  if (!write) std::memset(data, 0, len);
  return KZ_ST_OK;
}

class HostEnd : public End {
 public:
  HostEnd(Core& core, uint64_t iova) : core_(core), iova_(bus_address(core, iova)) {}
  uint16_t read(uint64_t offset, std::span<std::byte> out) override {
    if (core_.bus.read(iova_ + offset, out)) return KZ_ST_OK;
    return refused(core_, iova_ + offset, out.data(), out.size(), false);
  }
  uint16_t write(uint64_t offset, std::span<const std::byte> in) override {
    if (core_.bus.write(iova_ + offset, in)) return KZ_ST_OK;
    return refused(core_, iova_ + offset, const_cast<std::byte*>(in.data()), in.size(), true);
  }
  std::byte* direct(uint64_t offset, uint64_t len, bool for_write) override {
    return core_.bus.acquire(iova_ + offset, len, for_write);
  }
  void done() override { core_.bus.release(); }
  void stray_write(int64_t offset, std::span<const std::byte> in) override {
    core_.bus.write(iova_ + static_cast<uint64_t>(offset), in);  // where nothing is mapped the bytes are lost
  }

 private:
  Core& core_;
  uint64_t iova_;
};

class SgEnd : public End {
 public:
  SgEnd(Core& core, std::vector<kz_sge> list) : core_(core), list_(std::move(list)) {
    for (kz_sge& e : list_) e.addr = bus_address(core, e.addr);
  }
  uint16_t read(uint64_t offset, std::span<std::byte> out) override {
    return each(offset, out.size(), [&](uint64_t iova, uint64_t n, uint64_t at) -> uint16_t {
      if (core_.bus.read(iova, out.subspan(at, n))) return KZ_ST_OK;
      return refused(core_, iova, out.data() + at, n, false);
    });
  }
  uint16_t write(uint64_t offset, std::span<const std::byte> in) override {
    return each(offset, in.size(), [&](uint64_t iova, uint64_t n, uint64_t at) -> uint16_t {
      if (core_.bus.write(iova, in.subspan(at, n))) return KZ_ST_OK;
      return refused(core_, iova, const_cast<std::byte*>(in.data()) + at, n, true);
    });
  }
  std::byte* direct(uint64_t, uint64_t, bool) override { return nullptr; }
  void stray_write(int64_t offset, std::span<const std::byte> in) override {
    uint64_t before = 0;
    for (const kz_sge& e : list_) {
      bool last = &e == &list_.back();
      if (offset < static_cast<int64_t>(before + e.len) || last) {
        core_.bus.write(e.addr + static_cast<uint64_t>(offset - static_cast<int64_t>(before)), in);
        return;
      }
      before += e.len;
    }
  }
  std::vector<kz_sge>* pieces() override { return &list_; }

 private:
  template <class F>
  uint16_t each(uint64_t offset, uint64_t len, F f) {
    uint64_t done = 0;
    for (const kz_sge& e : list_) {
      if (offset >= e.len) {
        offset -= e.len;
        continue;
      }
      uint64_t n = std::min<uint64_t>(e.len - offset, len - done);
      if (n == 0) break;
      if (uint16_t status = f(e.addr + offset, n, done); status != KZ_ST_OK) return status;
      done += n;
      offset = 0;
    }
    return KZ_ST_OK;
  }

  Core& core_;
  std::vector<kz_sge> list_;
};

class HbmEnd : public End {
 public:
  HbmEnd(Core& core, Pinned range) : core_(core), range_(std::move(range)) {}
  uint16_t read(uint64_t offset, std::span<std::byte> out) override {
    return hbm_read(core_, range_, offset, out);
  }
  uint16_t write(uint64_t offset, std::span<const std::byte> in) override {
    hbm_write(core_, range_, offset, in);
    return KZ_ST_OK;
  }
  std::byte* direct(uint64_t offset, uint64_t len, bool for_write) override {
    std::byte* p = hbm_direct(core_, range_, offset, len);
    if (p != nullptr && !for_write) core_.note_read(len);
    return p;
  }
  void stray_write(int64_t offset, std::span<const std::byte> in) override {
    uint64_t size = 0;
    for (const auto& s : range_.segments()) size += s.len;
    uint64_t inside = std::clamp<int64_t>(offset, 0, static_cast<int64_t>(size) - 1), at = 0;
    range_.pieces(inside, 1, [&](uint64_t physical, uint64_t, uint64_t) { at = physical; });
    at += static_cast<uint64_t>(offset) - inside;
    if (at < core_.hbm.size() && in.size() <= core_.hbm.size() - at) core_.hbm.write(at, in);
  }
  void detach() override { range_ = Pinned(nullptr, range_.segments(), 0); }
  bool on_bus() const override { return false; }

 private:
  Core& core_;
  Pinned range_;
};

std::unique_ptr<End> make_sg_end(Core& core, uint64_t addr, uint64_t len, uint16_t sges, uint16_t& status) {
  if (addr % 16 != 0) {
    status = KZ_ST_MISALIGNED;
    return nullptr;
  }
  std::vector<kz_sge> list(sges);
  if (!core.bus.read(addr, std::as_writable_bytes(std::span(list)))) {
    status = KZ_ST_DMA_FAULT;
    return nullptr;
  }
  uint64_t sum = 0;
  for (const kz_sge& e : list) {
    if (!reserved_ok(core, {reinterpret_cast<const uint8_t*>(&e.rsvd), sizeof e.rsvd}, 1)) {
      status = KZ_ST_BAD_FIELD;
      return nullptr;
    }
    if (e.len == 0) status = KZ_ST_BAD_LENGTH;
    if (e.len != 0 && e.addr + (e.len - 1) < e.addr && status == KZ_ST_OK) status = KZ_ST_DMA_FAULT;
    sum += e.len;
  }
  if (sum != len) status = KZ_ST_BAD_LENGTH;
  if (status != KZ_ST_OK) return nullptr;
  return std::make_unique<SgEnd>(core, std::move(list));
}

}  // namespace

std::unique_ptr<End> make_end(Core& core, const Requester& who, uint8_t space, uint64_t addr, uint64_t len,
                              uint16_t sges, bool for_write, uint16_t& status) {
  status = KZ_ST_OK;
  if (space == KZ_SP_HOST_SG) return make_sg_end(core, addr, len, sges, status);
  if (space == KZ_SP_HOST) {
    if (addr + (len - 1) >= addr) return std::make_unique<HostEnd>(core, addr);
    status = KZ_ST_DMA_FAULT;
    return nullptr;
  }
  Pinned range = core.memory.pin(who.context, addr, len, for_write);
  if (range) return std::make_unique<HbmEnd>(core, std::move(range));
  status = KZ_ST_HBM_FAULT;
  return nullptr;
}

}  // namespace kz::softtpu
