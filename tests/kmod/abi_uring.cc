// SPDX-License-Identifier: GPL-2.0-or-later
// io_uring commands of the reference driver: sizes, links, drains, cancellation, rings that go away.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "tests/harness/test.h"
#include "tests/kmod/calls.h"

namespace kz::test {

KZ_ABI_TEST(uring_forms, "entries and completions of the wrong size, linked, drained and cancelled requests",
            60s) {
  const Target t = abi_target();
  if (!Ring::allowed()) skip("this kernel does not allow io_uring with entries of 128 bytes");
  User user(t.node);
  const kz_uring_cmd copy{.cmd = user.copies(1)[0], .queue = user.queue, .timeout_ms = 0, .result_at = 0};
  {
    Ring narrow(8, 0);
    narrow.add(user.fd(), KZ_URING_SUBMIT, copy, 1);
    narrow.submit();
    auto got = narrow.answers(1, 10);
    ASSERT_EQ(got.size(), 1u);
    expect_errno("SUBMIT in an entry of 64 bytes", got[0].res, {-EINVAL});
  }
  {
    Ring half(8, IORING_SETUP_SQE128);
    half.add(user.fd(), KZ_URING_SUBMIT, copy, 1);
    half.submit();
    auto got = half.answers(1, 10);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].res, KZ_ST_OK) << "completions of 16 bytes do";
  }
  Ring ring(64);
  kz_uring_cmd bad = copy;
  bad.queue = 9999;
  ring.add(user.fd(), KZ_URING_SUBMIT, bad, 10, IOSQE_IO_LINK);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 11);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 12, IOSQE_IO_LINK);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 13, IOSQE_IO_LINK);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 14);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 15, IOSQE_IO_DRAIN);
  ring.add(user.fd(), KZ_URING_SUBMIT, copy, 16, IOSQE_ASYNC);
  ring.submit();
  std::map<uint64_t, int> res;
  std::vector<uint64_t> order;
  for (auto& a : ring.answers(7, 20)) {
    if (!res.emplace(a.user_data, a.res).second)
      wrong("twice", fmt::format("io_uring request {} was completed twice", a.user_data));
    order.push_back(a.user_data);
  }
  if (res.size() != 7)
    return wrong("never", fmt::format("{} of 7 io_uring requests were completed within 20 s", res.size()));
  EXPECT_EQ(res[10], -ENOENT);
  EXPECT_EQ(res[11], -ECANCELED) << "the one behind a failed link";
  for (uint64_t n = 12; n <= 16; ++n) EXPECT_EQ(res[n], KZ_ST_OK) << "request " << n;
  auto place = [&](uint64_t n) { return std::ranges::find(order, n) - order.begin(); };
  EXPECT_LT(place(12), place(13));
  EXPECT_LT(place(13), place(14));
  EXPECT_LT(place(14), place(15)) << "a drained request was completed before those in front of it";
  EXPECT_TRUE(ring.answers(1, 0.2).empty()) << "a request was completed twice";
}

KZ_ABI_TEST(uring_cancel,
            "cancelled requests and rings that go away: each request ends once, the queue goes on", 90s) {
  const Target t = abi_target();
  if (!Ring::allowed()) skip("this kernel does not allow io_uring with entries of 128 bytes");
  User user(t.node);
  const kz_uring_cmd copy{.cmd = user.copies(1)[0], .queue = user.queue, .timeout_ms = 0, .result_at = 0};
  for (int round = 0; round < 10; ++round) {
    Ring ring(64);
    for (uint64_t n = 0; n < 32; ++n) ring.add(user.fd(), KZ_URING_SUBMIT, copy, n);
    ring.submit();
    for (uint64_t n = 0; n < 32; n += 3) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring.raw());
      ASSERT_NE(sqe, nullptr);
      std::memset(sqe, 0, 2 * sizeof *sqe);
      io_uring_prep_cancel64(sqe, n, 0);
      sqe->user_data = 1000 + n;
    }
    ring.submit();
    std::set<uint64_t> seen;
    for (auto& a : ring.answers(32 + 11, 20))
      if (!seen.insert(a.user_data).second)
        wrong("twice", fmt::format("io_uring request {} was completed twice", a.user_data));
    if (seen.size() != 43)
      return wrong("never",
                   fmt::format("{} of 43 requests and cancellations ended within 20 s", seen.size()));
  }
  for (int round = 0; round < 20; ++round) {
    Ring ring(64);
    for (uint64_t n = 0; n < 48; ++n) ring.add(user.fd(), KZ_URING_SUBMIT, copy, n);
    ring.submit();
  }
  kz_ioc_queue_stat s{};
  auto books = [&] {
    s = {};
    s.queue = user.queue;
    return call(user.fd(), KZ_IOC_QUEUE_STAT, s) == 0 && s.outstanding == 0;
  };
  if (!wait_until(20s, books))
    wrong("never", fmt::format("{} commands of closed rings never ended", s.outstanding));
  EXPECT_EQ(s.submitted, s.completed + s.lost + s.outstanding);
  EXPECT_EQ(s.lost, 0u);
  expect_works(user);
}

}  // namespace kz::test
