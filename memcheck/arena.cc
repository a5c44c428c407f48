// SPDX-License-Identifier: GPL-2.0-or-later
#include "memcheck/arena.h"

#include <algorithm>

#include "shim/base/error.h"

namespace kz::memcheck {

Arena::Arena(Device& device, std::optional<Bytes> want) : device_(device), context_(device.create_context()) {
  queue_ = test::open_queue(device_, *context_);
  auto free = device.telemetry().hbm_free;
  uint64_t all = free.value_or(device.capabilities().limits.hbm_bytes);
  take(want ? std::min(want->value, all) : all);
}

void Arena::take(uint64_t want) {
  uint64_t page = device_.capabilities().limits.hbm_page;
  uint64_t left = want / page * page;
  for (uint64_t ask = left; ask >= page && left >= page;) {
    ask = std::min(ask, left);
    try {
      blocks_.push_back(context_->alloc({ask}));
    } catch (const Error& e) {
      if (e.code() != Errc::no_memory) throw;
      ask = ask / 2 / page * page;
      continue;
    }
    regions_.push_back({blocks_.back()->addr(), blocks_.back()->size()});
    size_ += blocks_.back()->size();
    left -= std::min(left, blocks_.back()->size());
  }
  if (blocks_.empty())
    throw Error({.code = Errc::no_memory,
                 .operation = "allocate HBM",
                 .target = to_string(Bytes{want}),
                 .detail = "not one page is free"});
  std::ranges::sort(regions_, {}, &Region::addr);
}

uint64_t Arena::physical(uint64_t addr) {
  if (!device_.capabilities().has(Cap::hbm_physical)) return addr;
  uint64_t page = device_.capabilities().limits.hbm_page;
  uint64_t base = addr / page * page;
  auto it = pages_.find(base);
  if (it == pages_.end()) it = pages_.emplace(base, device_.physical(*context_, {base}).value).first;
  return it->second + addr % page;
}

std::vector<Region> Arena::spread(uint64_t bytes, uint64_t piece) const {
  std::vector<Region> pieces;
  for (const Region& r : regions_)
    for (uint64_t at = 0; at < r.size; at += piece)
      pieces.push_back({r.addr + at, std::min(piece, r.size - at)});
  uint64_t want = std::clamp<uint64_t>((bytes + piece - 1) / piece, 1, pieces.size());
  if (want == pieces.size()) return pieces;
  std::vector<Region> some;
  for (uint64_t i = 0; i < want; ++i)
    some.push_back(pieces[want == 1 ? 0 : i * (pieces.size() - 1) / (want - 1)]);
  return some;
}

}  // namespace kz::memcheck
