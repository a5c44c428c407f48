// SPDX-License-Identifier: GPL-2.0-or-later
// Mappings and poll of the reference driver's node: their edges, and resets below them.
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>

#include "tests/harness/test.h"
#include "tests/kmod/calls.h"

namespace kz::test {

KZ_ABI_TEST(map_edges, "a mapping ends where the memory ends, and only what is one's own can be mapped",
            30s) {
  const Target t = abi_target();
  need_aperture(t);
  User user(t.node);
  const auto at = [&](uint64_t offset, size_t length, int protection = PROT_READ, int flags = MAP_SHARED) {
    void* p = ::mmap(nullptr, length, protection, flags, user.fd(), static_cast<off_t>(offset));
    if (p == MAP_FAILED) return -errno;
    ::munmap(p, length);
    return 0;
  };
  EXPECT_EQ(at(user.map_at, User::hbm_bytes), 0);
  EXPECT_EQ(at(user.map_at + User::hbm_bytes - 4096, 4096), 0);
  const std::pair<const char*, int> refused[] = {
      {"one page more than allocated", at(user.map_at, User::hbm_bytes + 4096)},
      {"behind the allocation", at(user.map_at + User::hbm_bytes, 4096)},
      {"over its end", at(user.map_at + User::hbm_bytes - 4096, 8192)},
      {"an allocation that does not exist", at(uint64_t{4000} << KZ_MMAP_SHIFT, 4096)},
      {"the end of all HBM", at(user.info().hbm_bytes, 4096)},
      {"over the end of all HBM", at(user.info().hbm_bytes - 4096, 8192)},
      {"the largest offset", at(0x7ffffffffffff000, 4096)},
      {"privately", at(user.map_at, 4096, PROT_READ, MAP_PRIVATE)}};
  for (auto& [what, rc] : refused)
    if (rc >= 0) wrong("mmap", fmt::format("mmap of {} was allowed", what));
  // A mapping must not be made longer afterwards.
  char* p = user.map(4096);
  ASSERT_NE(p, nullptr);
  if (void* moved = ::mremap(p, 4096, User::hbm_bytes * 2, MREMAP_MAYMOVE); moved != MAP_FAILED) {
    if (!faults(static_cast<char*>(moved) + User::hbm_bytes + 4096))
      wrong("mmap", "a mapping was stretched beyond its allocation");
    ::munmap(moved, User::hbm_bytes * 2);
  }
}

KZ_ABI_TEST(poll_wakes, "poll wakes for a completion, and only then", 30s) {
  const Target t = abi_target();
  User user(t.node);
  for (int round = 0; round < 20; ++round) {
    pollfd p{user.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 0), 0) << "poll says something with nothing to reap";
    ASSERT_EQ(user.submit(user.copies(2)), 2);
    p.revents = 0;
    const int rc = ::poll(&p, 1, 10000);
    if (rc != 1 || (p.revents & POLLIN) == 0) {
      wrong("poll", fmt::format("poll did not wake within 10 s of a command: {} {:#x}", rc, p.revents));
      return;
    }
    std::vector<kz_done> done;
    ASSERT_EQ(user.reap(done, 8, 2), 0);
    EXPECT_EQ(done.size(), 2u);
  }
}

KZ_ABI_TEST(map_and_reset, "a mapping does not outlive a reset, and handles from before it are stale", 60s) {
  const Target t = abi_target();
  need_aperture(t);
  expect_log(t.slot);
  before_danger("reset the device through its driver");
  for (uint32_t kind : {KZ_RESET_KIND_FUNCTION, KZ_RESET_KIND_DEVICE, KZ_RESET_KIND_FIRMWARE}) {
    User user(t.node);
    char* map = user.map(65536);
    ASSERT_NE(map, nullptr);
    ASSERT_FALSE(faults(map));
    kz_ioc_reset r{};
    r.kind = kind;
    if (int rc = call(user.fd(), KZ_IOC_RESET, r); rc == -EOPNOTSUPP) continue;
    if (!faults(map)) wrong("mmap", fmt::format("a mapping can still be read after reset {}", kind));
    expect_errno("SUBMIT after a reset", user.submit(user.copies(1)), {-ESTALE});
    pollfd p{user.fd(), POLLPRI, 0};
    EXPECT_EQ(::poll(&p, 1, 0), 1) << "poll does not tell of the reset";
    kz_info info{};
    EXPECT_EQ(call(user.fd(), KZ_IOC_INFO, info), 0);
    EXPECT_EQ(::poll(&p, 1, 0), 0) << "poll tells of a reset that was asked for already";
  }
  expect_works(t);
}

}  // namespace kz::test
