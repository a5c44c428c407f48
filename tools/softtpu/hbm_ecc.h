// SPDX-License-Identifier: GPL-2.0-or-later
// The ECC of HBM: SECDED over each 64-bit word, seen as marks on words and as counters per channel.
//
// The array itself never holds the flipped bits: a mark says that a word has a correctable or an
// uncorrectable error. Planted cell faults (M01..M22) act behind the ECC, as damage beyond what SECDED
// reaches, so they stay visible with ECC on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_telemetry.h"
#include "tools/softtpu/fault_board.h"

namespace kz::softtpu {

class Ecc {
 public:
  enum class Kind : uint8_t { correctable, uncorrectable };

  Ecc(bool enabled, uint32_t geometry, FaultBoard& faults)
      : enabled_(enabled), geometry_(geometry), faults_(faults) {}

  bool enabled() const { return enabled_; }
  // Marks the word at `addr` (8-byte aligned). An uncorrectable mark is not weakened by a correctable one.
  void inject(uint64_t addr, Kind kind);
  // Whether any word carries a mark: one relaxed load, for fast paths.
  bool marked() const { return count_.load(std::memory_order_relaxed) != 0; }
  bool marked(uint64_t addr, uint64_t len) const;
  // A read of these bytes: corrects, counts and drops correctable marks; false when it met an uncorrectable
  // one.
  bool on_read(uint64_t addr, uint64_t len);
  // A write: words that are written whole lose their marks.
  void on_write(uint64_t addr, uint64_t len);
  // The same for memory that is cleared by the firmware, but what was found bad is remembered for retirement.
  void on_clear(uint64_t addr, uint64_t len) { on_write(addr, len); }

  // Counts an error, unless the counters are stuck (fault M26). An uncorrectable one makes its page ripe for
  // retirement.
  void count_correctable(uint32_t channel, uint32_t n = 1);
  void count_uncorrectable(uint64_t addr);
  uint32_t channel_of(uint64_t addr) const { return kz_hbm_split(addr, geometry_).channel; }
  uint32_t channels() const { return 1u << KZ_GEOM_CH(geometry_); }
  uint32_t correctable(uint32_t channel) const { return ce_[channel].load(std::memory_order_relaxed); }
  uint32_t uncorrectable(uint32_t channel) const { return ue_[channel].load(std::memory_order_relaxed); }

  // Pages (numbers) with an uncorrectable error that nobody has retired yet.
  std::set<uint64_t> bad_pages() const;
  void forget_bad_page(uint64_t page);
  // Changes with every counted error: the telemetry is rewritten then.
  uint64_t events() const { return events_.load(std::memory_order_relaxed); }

 private:
  const bool enabled_;
  const uint32_t geometry_;
  FaultBoard& faults_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Kind> marks_;
  std::set<uint64_t> bad_pages_;
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> events_{0};
  std::array<std::atomic<uint32_t>, KZ_TEL_CHANNELS> ce_{}, ue_{};
};

}  // namespace kz::softtpu
