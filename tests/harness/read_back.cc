// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/read_back.h"

#include <algorithm>

#include "tests/harness/diagnose.h"
#include "tests/harness/pattern.h"
#include "tests/harness/test.h"

namespace kz::test {

void read_into(QueueGuard& queue, HbmAddr from, HostArea& to, uint64_t len) {
  std::ranges::fill(to.bytes(0, len), kNotRead);
  run_good(queue, {cmd::Copy{at(from), to.place(), len}});
}

std::string read_and_check(QueueGuard& queue, HbmAddr from, HostArea& to, std::span<const std::byte> want) {
  const std::vector<std::byte> before(want.size(), kNotRead);
  read_into(queue, from, to, want.size());
  return check_transfer({.path = "hbm>host",
                         .want = want,
                         .got = to.bytes(0, want.size()),
                         .before = before,
                         .reread =
                             [&] {
                               run_good(queue, {cmd::Copy{at(from), to.place(), want.size()}});
                             },
                         .queue = &queue,
                         .cells = from,
                         .cells_len = want.size()});
}

bool copies_arrive(Device& device, Context& context, QueueGuard& queue, uint64_t seed, int rounds) {
  constexpr uint64_t kLen = 8192;
  HostArea out(device, {.size = {kLen}}), in(device, {.size = {kLen}});
  auto block = context.alloc({kLen});
  std::vector<std::byte> want(kLen);
  for (int round = 0; round < rounds; ++round) {
    fill_payload(want, {seed, static_cast<uint32_t>(round)});
    std::ranges::copy(want, out.bytes().begin());
    run_good(queue, {cmd::Copy{out.place(), at(block->addr()), kLen}});
    const std::string bad = read_and_check(queue, block->addr(), in, want);
    if (bad.empty()) continue;
    ADD_FAILURE() << "copies do not arrive, so nothing else can be concluded from them: " << bad;
    return false;
  }
  return true;
}

}  // namespace kz::test
