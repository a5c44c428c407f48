// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/runtime/round_trip.h"

#include <algorithm>

#include "tests/harness/diagnose.h"
#include "tests/harness/pattern.h"

namespace kz::test {
namespace {

DmaSpec sized(DmaSpec spec, uint64_t size) {
  spec.size = {size};
  return spec;
}

uint64_t repeated(std::byte b) { return 0x0101010101010101ull * static_cast<uint64_t>(b); }

}  // namespace

RoundTrip::RoundTrip(Device& device, uint64_t longest, uint64_t seed, DmaSpec host)
    : context_(device.create_context()),
      queue_(open_queue(device, *context_)),
      from_(device, sized(host, longest)),
      to_(device, sized(host, longest)),
      scratch_(device, {.size = {2 * kHbmGuard}}),
      first_(context_->alloc({longest + 4 * kHbmGuard})),
      second_(context_->alloc({longest + 4 * kHbmGuard})),
      untouched_(longest, kUntouched),
      seed_(seed) {}

void RoundTrip::copy(Place from, Place to, uint64_t len) { run_good(*queue_, {cmd::Copy{from, to, len}}); }

void RoundTrip::clear_hbm(HbmBlock& block, uint64_t offset, uint64_t size) {
  run_good(*queue_, {cmd::Fill{at(block.addr() + offset), size + 2 * kHbmGuard, repeated(kUntouched)}});
}

void RoundTrip::last_hop(const Route& r) { copy(at(last_place(r)), to_.place(r.to), r.size); }

void RoundTrip::move(const Route& r) {
  const HbmAddr near = first_->addr() + (kHbmGuard + r.hbm);
  copy(from_.place(r.from), at(near), r.size);
  if (r.two_hops) copy(at(near), at(last_place(r)), r.size);
  last_hop(r);
}

std::string RoundTrip::check_hbm_guards(HbmBlock& block, uint64_t offset, uint64_t size) {
  const HbmAddr start = block.addr() + offset;
  auto host = scratch_.bytes();
  std::ranges::fill(host, kUntouched);  // a read that does not arrive is for the comparison to tell
  copy(at(start), scratch_.place(), kHbmGuard);
  copy(at(start + (kHbmGuard + size)), scratch_.place(kHbmGuard), kHbmGuard);
  std::string bad = check_guard(host.first(kHbmGuard), kUntouched, "before", "host>hbm");
  return bad.empty() ? check_guard(host.subspan(kHbmGuard), kUntouched, "after", "host>hbm") : bad;
}

std::vector<std::string> RoundTrip::run(const Route& r) {
  const Payload payload{seed_, sequence_++};
  const auto want = from_.bytes(r.from, r.size), got = to_.bytes(r.to, r.size);
  fill_payload(want, payload);
  std::ranges::fill(got, kUntouched);
  to_.arm(r.to, r.size);
  clear_hbm(*first_, r.hbm, r.size);
  if (r.two_hops) clear_hbm(*second_, r.second, r.size);
  move(r);

  std::vector<std::string> failures;
  auto note = [&](std::string text) {
    if (!text.empty()) failures.push_back(std::move(text));
  };
  // What was sent is kept apart: a device that writes into its source must not make the comparison true.
  std::vector<std::byte> sent(r.size);
  fill_payload(sent, payload);
  Transfer t{.path = r.two_hops ? "host>hbm>hbm>host" : "host>hbm>host",
             .want = sent,
             .got = got,
             .before = std::span(untouched_).first(r.size),
             .reread = [&] { last_hop(r); },
             .again = [&] { move(r); },
             .queue = queue_.get(),
             .cells = last_block(r).addr(),
             .cells_len = last_block(r).size(),
             .cells_skip = last_offset(r)};
  note(to_.check(r.to, r.size, t.path));
  note(check_hbm_guards(*first_, r.hbm, r.size));
  if (r.two_hops) note(check_hbm_guards(*second_, r.second, r.size));
  note(check_transfer(t));  // last: it may march over the cells
  if (want.size() != sent.size() || !std::equal(want.begin(), want.end(), sent.begin())) {
    evidence(ev::guard_overwritten,
             {{"where", "source"}, {"bytes", compare_bytes(sent, want).bytes}, {"path", t.path}});
    note("the source of a copy was written");
  }
  return failures;
}

}  // namespace kz::test
