// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/march_run.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "shim/base/error.h"

namespace kz::memcheck {
namespace {

constexpr uint16_t log_entries = 128;

std::vector<Region> cut(const std::vector<Region>& regions, uint64_t piece) {
  std::vector<Region> out;
  for (const Region& r : regions)
    for (uint64_t at = 0; at < r.size; at += piece)
      out.push_back({r.addr + at, std::min(piece, r.size - at)});
  return out;
}

[[noreturn]] void throw_status(const Completion& done, const Region& piece) {
  throw Error({.code = Errc::status,
               .operation = "MARCH",
               .target = "HBM at " + std::to_string(piece.addr.value),
               .detail = std::string(to_string(done.status))});
}

}  // namespace

MarchRunner::MarchRunner(Arena& arena)
    : arena_(arena), log_(arena.device().dma_buffer({.size = {log_entries * sizeof(kz_march_fail)}})) {}

MarchOutcome MarchRunner::run(const MarchTest& test, const Background& background,
                              const std::vector<Region>& regions) {
  MarchOutcome out{.test = test.name, .background = background};
  auto start = Clock::now();
  auto pieces = cut(regions, std::min(piece, arena_.device().capabilities().limits.max_transfer));
  for (const Region& r : pieces) out.cells += r.size / 8;
  for (unsigned i = 0; i < test.elements.size(); ++i) {
    const MarchElement& e = test.elements[i];
    out.elements.push_back(to_string(e));
    if (e.pause) {
      wait_device_time(arena_.queue(), pause_);
    } else if (e.order == Order::down) {
      for (auto it = pieces.rbegin(); it != pieces.rend(); ++it) element(e, i, background, *it, out);
    } else {
      for (const Region& r : pieces) element(e, i, background, r, out);
    }
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

void MarchRunner::element(const MarchElement& e, unsigned index, const Background& bg, const Region& where,
                          MarchOutcome& out) {
  if (between_) between_();
  cmd::March work{.addr = where.addr,
                  .len = where.size,
                  .ops = e.ops,
                  .down = e.order == Order::down,
                  .own_address = bg.own_address,
                  .pattern = bg.pattern,
                  .log = log_->iova(),
                  .log_max = log_entries};
  Completion done = test::run_one(arena_.queue(), {work}, std::chrono::seconds(10));
  if (done.status == Status::poison) return find_poison(where, index, out);
  if (done.status != Status::ok) throw_status(done, where);
  out.mismatches += done.result;
  auto n = std::min<uint64_t>(done.result, log_entries);
  for (uint64_t i = 0; i < n && out.hits.size() < max_hits; ++i) {
    kz_march_fail f;
    std::memcpy(&f, log_->bytes().data() + i * sizeof f, sizeof f);
    out.hits.push_back({f.addr, f.expected, f.read, index, f.op});
  }
}

// Halves the piece by reading it until one page is left.
void MarchRunner::find_poison(const Region& where, unsigned index, MarchOutcome& out) {
  Region r = where;
  for (uint64_t line = uint64_t{1} << KZ_HBM_LINE_SHIFT; r.size > line;) {
    Region low{r.addr, r.size / 2}, high{r.addr + r.size / 2, r.size - r.size / 2};
    auto poisoned = [&](const Region& half) {
      cmd::March read{.addr = half.addr, .len = half.size, .ops = {MarchOp::r0}};
      return test::run_one(arena_.queue(), {read}, std::chrono::seconds(10)).status == Status::poison;
    };
    if (poisoned(low))
      r = low;
    else if (poisoned(high))
      r = high;
    else
      break;  // it was there once only
  }
  out.poison.push_back({r.addr, r.size, index});
}

std::vector<Region> MarchRunner::affordable(const MarchTest& test, std::chrono::duration<double> budget,
                                            unsigned repeats) {
  std::vector<Region> all = arena_.regions();
  Region first{all.front().addr, std::min(piece, all.front().size)};
  // The first touch of memory may cost extra (a model's pages, a cleaner's lines), once.
  double cold = run(test, {}, {first}).seconds, warm = run(test, {}, {first}).seconds;
  double per_byte = std::max({cold, warm, 1e-6}) / static_cast<double>(first.size);
  double bytes = budget.count() / (per_byte + (repeats - 1) * warm / static_cast<double>(first.size));
  if (bytes >= static_cast<double>(arena_.size())) return all;
  return arena_.spread(static_cast<uint64_t>(bytes), first.size);
}

std::string MarchRunner::reread(const MarchTest& test, const MarchOutcome& outcome) {
  constexpr size_t most = 4;
  uint64_t page = arena_.device().capabilities().limits.hbm_page;
  std::set<uint64_t> words;
  for (const Hit& h : outcome.hits)
    if (words.size() < most) words.insert(h.addr);
  for (uint64_t word : words) {
    Region around{{word / page * page}, page};
    for (int i = 0; i < 3; ++i) {
      auto again = run(test, outcome.background, {around});
      if (std::ranges::none_of(again.hits, [&](const Hit& h) { return h.addr == word; }))
        return "intermittent";
    }
  }
  return "hard";
}

void wait_device_time(test::QueueGuard& queue, std::chrono::nanoseconds span) {
  auto now = [&] { return test::run_one(queue, {cmd::Timestamp{}}).result; };
  uint64_t start = now();
  Deadline deadline(2 * span + std::chrono::seconds(2));
  while (now() - start < static_cast<uint64_t>(span.count())) {
    if (deadline.passed())
      throw Error({.code = Errc::timeout,
                   .operation = "wait for the device's clock",
                   .target = "TIMESTAMP",
                   .detail = "it did not go on by " + kz::to_string(span) + " within " +
                             kz::to_string(deadline.budget())});
    (void)queue.wait(
        Deadline(std::chrono::milliseconds(5)));  // nothing is outstanding: gives the processor away
  }
}

}  // namespace kz::memcheck
