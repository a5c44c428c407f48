// SPDX-License-Identifier: GPL-2.0-or-later
// Runs matmuls on the device, judges them by the golden, and where one is wrong finds out whether the unit or
// the memory under it is to blame.
#pragma once

#include <memory>
#include <vector>

#include "shim/device.h"
#include "tests/compute/golden.h"
#include "tests/harness/queue_guard.h"

namespace kz::compute {

// What every test of the matmul unit needs.
inline const std::vector<Cap> basics = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc};

class Rig {
 public:
  // `bytes` of HBM for operands and results.
  explicit Rig(Device& device, Bytes bytes = 16_MiB);

  Device& device() { return device_; }
  Context& context() { return *context_; }
  test::QueueGuard& queue() { return *queue_; }
  HbmAddr base() const { return block_->addr(); }
  uint32_t numeric(Dtype t) const { return device_.capabilities().limits.numeric[static_cast<size_t>(t)]; }
  bool has(Dtype t) const;
  std::vector<Dtype> types() const;  // matmul types of this device
  std::vector<Dtype> float_types() const;

  // Through a buffer of this rig; throws Error(status).
  void upload(HbmAddr to, std::span<const std::byte> bytes);
  void download(HbmAddr from, std::span<std::byte> bytes);

  // Uploads, runs, downloads: m * ldc words of C.
  std::vector<uint32_t> run(const Job& job);
  // Runs again what is uploaded.
  std::vector<uint32_t> rerun(const Job& job);
  // Runs and judges. A wrong result is diagnosed, reported as evidence and fails the running test. True:
  // right.
  bool check(const Job& job);
  // As check, and the same bits from `times` further runs where the contract promises that.
  bool check_repeatable(const Job& job, unsigned times);

 private:
  struct Layout {
    HbmAddr a, b, c;
    uint64_t end;
  };
  Layout layout(const Job& job) const;
  cmd::Matmul command(const Job& job) const;
  bool memory_is_good(const Job& job, std::span<const uint32_t> got);
  bool intact(HbmAddr where, std::span<const std::byte> want);
  void report(const Job& job, const Golden& golden, const Wrong& wrong, const std::vector<uint32_t>& got);

  Device& device_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<HbmBlock> block_;
  std::unique_ptr<test::QueueGuard> queue_;
  std::shared_ptr<DmaBuffer> host_;
};

}  // namespace kz::compute
