// SPDX-License-Identifier: GPL-2.0-or-later
// High-bandwidth memory: a sparse memfd behind ECC and the cell model. Every path of the device reads and
// writes it here.
//
// Addresses are physical and ranges inside the memory: callers have checked them. Thread-safe, as memory is:
// accesses that race see each other's bytes in any mixture.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "shim/base/fd.h"
#include "tools/softtpu/cells.h"
#include "tools/softtpu/hbm_ecc.h"

namespace kz::softtpu {

class Hbm {
 public:
  static constexpr uint64_t page = 65536;  // allocation, translation and retirement unit
  static constexpr uint64_t min_bytes = uint64_t{64} << 20, max_bytes = uint64_t{64} << 30;

  // Throws Error(usage) for a size or geometry that cannot be; Error(no_memory, io) from the system.
  Hbm(uint64_t bytes, uint32_t geometry, bool ecc, FaultBoard& faults);

  uint64_t size() const { return size_; }
  uint64_t pages() const { return size_ / page; }
  uint32_t geometry() const { return geometry_; }
  int fd() const { return fd_.get(); }
  Ecc& ecc() { return ecc_; }
  void set_celsius(double c) { celsius_.store(c, std::memory_order_relaxed); }

  // False: an uncorrectable error in the data; `out` is not to be used.
  bool read(uint64_t addr, std::span<std::byte> out);
  void write(uint64_t addr, std::span<const std::byte> in);
  // The bytes themselves where nothing stands between them and an access: no defect, no ECC mark. Else null.
  std::byte* direct(uint64_t addr, uint64_t len);
  // For a run of march operations with `reads` reads of each word in [addr, addr+len), inside one page: as
  // direct, and the reads count towards an intermittent flip.
  std::byte* direct_for_march(uint64_t addr, uint64_t len, uint64_t reads);
  // Where direct_for_march gave null.
  CellModel* cells() { return model_.load(std::memory_order_acquire); }

  // Zeroes whole pages; memory of the host is given back.
  void clear(uint64_t addr, uint64_t len);
  void clear_all();
  // What is planted changed.
  void rebuild_cells();

  struct Range {
    uint64_t offset, size;
  };
  // Largest pieces without an affected page, in order.
  std::vector<Range> direct_ranges();

 private:
  void punch(uint64_t addr, uint64_t len);

  const uint64_t size_;
  const uint32_t geometry_;
  FaultBoard& faults_;
  Fd fd_;
  Mapping map_;
  Ecc ecc_;
  std::atomic<double> celsius_{0};
  std::atomic<CellModel*> model_{nullptr};  // null: no defect
  std::mutex rebuild_;
  std::vector<std::unique_ptr<CellModel>> models_;  // old ones stay: an access may still be inside
};

}  // namespace kz::softtpu
