// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/hammer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "shim/base/error.h"

namespace kz::memcheck {
namespace {

constexpr uint64_t pattern = 0x9696969669696969;
constexpr uint16_t hammer_log_entries = 8;

class Hammer {
 public:
  Hammer(Arena& arena, unsigned accesses)
      : geometry_(*arena.geometry()),
        accesses_(accesses),
        queue_(test::open_queue(arena.device(), arena.device().root_context(), {.order = 5})),
        log_(arena.device().dma_buffer({.size = {hammer_log_entries * sizeof(kz_march_fail)}})),
        limit_(arena.device().capabilities().limits.hbm_bytes) {}

  uint32_t rows() const { return kz_hbm_split(limit_ - 1, geometry_).row + 1; }

  // Gives the victim and its neighbours a background and reads the neighbours in turn. Returns what changed.
  std::vector<Hit> victim(uint32_t row, uint32_t column) {
    std::array<uint32_t, 2> sides = {row == 0 ? row + 1 : row - 1, row + 1 == rows() ? row - 1 : row + 1};
    if (sides[0] == sides[1]) sides[1] = (row + rows() / 2) % rows();  // one neighbour: a far row closes it
    run_ok(*queue_, {march(whole(row), MarchOp::w0, 1, pattern)});
    for (uint32_t side : sides) run_ok(*queue_, {march(stripe(side, column), MarchOp::w1, 1, pattern)});
    cmd::March first = march(stripe(sides[0], column), MarchOp::r1, KZ_MARCH_OPS, pattern);
    cmd::March second = march(stripe(sides[1], column), MarchOp::r1, KZ_MARCH_OPS, pattern);
    constexpr unsigned words = (1u << KZ_HBM_LINE_SHIFT) / 8;
    for (unsigned done = 0; done < accesses_;) {
      for (unsigned i = 0; i + 1 < queue_->depth() && done < accesses_;
           i += 2, done += 2 * words * KZ_MARCH_OPS) {
        queue_->submit({first}, true);
        queue_->submit({second}, true);
      }
      queue_->ring();
      check_all_ok(test::finish(*queue_));
    }
    return changed(row);
  }

 private:
  // One line of the row in every bank of every channel: a contiguous range, since the column lies above the
  // bank.
  Region stripe(uint32_t row, uint32_t column) const {
    uint64_t start = kz_hbm_join({.column = column, .row = row}, geometry_);
    return {{start},
            uint64_t{1} << (KZ_HBM_LINE_SHIFT + KZ_GEOM_CH(geometry_) + KZ_GEOM_PC(geometry_) +
                            KZ_GEOM_BANK(geometry_))};
  }
  Region whole(uint32_t row) const {
    return {{kz_hbm_join({.row = row}, geometry_)}, stripe(0, 0).size << KZ_GEOM_COL(geometry_)};
  }

  static cmd::March march(const Region& r, MarchOp op, unsigned times, uint64_t background) {
    return {.addr = r.addr, .len = r.size, .ops = std::vector<MarchOp>(times, op), .pattern = background};
  }

  static void check_all_ok(const std::vector<Completion>& done) {
    for (const Completion& c : done)
      if (c.status != Status::ok)
        throw Error({.code = Errc::status,
                     .operation = "MARCH",
                     .target = "aggressor row",
                     .detail = std::string(to_string(c.status))});
  }

  std::vector<Hit> changed(uint32_t row) {
    cmd::March read = march(whole(row), MarchOp::r0, 1, pattern);
    read.log = log_->iova();
    read.log_max = hammer_log_entries;
    uint64_t n = run_ok(*queue_, {read}).result;
    std::vector<Hit> hits;
    for (uint64_t i = 0; i < std::min<uint64_t>(n, hammer_log_entries); ++i) {
      kz_march_fail f;
      std::memcpy(&f, log_->bytes().data() + i * sizeof f, sizeof f);
      hits.push_back({f.addr, f.expected, f.read, 0, f.op});
    }
    return hits;
  }

  uint32_t geometry_;
  unsigned accesses_;
  std::unique_ptr<test::QueueGuard> queue_;
  std::shared_ptr<DmaBuffer> log_;
  uint64_t limit_;
};

}  // namespace

HammerOutcome hammer(Arena& arena, const HammerPlan& plan, std::mt19937_64& rng) {
  Hammer hammer(arena, plan.accesses);
  HammerOutcome out;
  uint32_t rows = hammer.rows();
  if (rows < 3) return out;
  std::vector<uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), rng);  // where the budget ends, what was covered is a fair sample
  uint32_t columns = 1u << KZ_GEOM_COL(*arena.geometry());
  Deadline deadline(std::chrono::duration_cast<std::chrono::nanoseconds>(plan.budget));
  for (uint32_t row : order) {
    if (deadline.passed()) break;
    out.hits = hammer.victim(row, static_cast<uint32_t>(rng()) % columns);
    ++out.rows;
    if (!out.hits.empty()) break;
  }
  out.covered = static_cast<double>(out.rows) / rows;
  return out;
}

}  // namespace kz::memcheck
