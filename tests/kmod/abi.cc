// SPDX-License-Identifier: GPL-2.0-or-later
// The reference driver's ioctls at their edges: numbers, flags, sizes, reserved fields, what is given out.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "tests/harness/test.h"
#include "tests/kmod/calls.h"

namespace kz::test {

KZ_ABI_TEST(unknown_numbers, "ioctl and io_uring numbers that do not exist are refused, and do nothing",
            60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  std::set<unsigned long> known;
  for (auto& s : call_shapes()) known.insert(s.number);
  for (unsigned n = 0; n < 256; ++n)
    for (unsigned long number : {static_cast<unsigned long>(_IO(KZ_IOC_TYPE, n)),
                                 static_cast<unsigned long>(_IOC(_IOC_READ | _IOC_WRITE, KZ_IOC_TYPE, n, 16)),
                                 static_cast<unsigned long>(_IO(KZ_IOC_TYPE + 1, n))}) {
      if (known.contains(number)) continue;
      char* p = memory.last(16);
      set32(p, 16);
      expect_errno(fmt::format("ioctl {:#x}", number), raw_call(user.fd(), number, p), {-ENOTTY});
    }
  if (Ring::allowed()) {
    Ring ring(64);
    for (uint32_t op : {2u, 3u, 77u, 0x7fffffffu, 0xffffffffu}) ring.add(user.fd(), op, {}, op);
    ring.submit();
    auto answers = ring.answers(5, 10);
    EXPECT_EQ(answers.size(), 5u);
    for (auto& a : answers)
      expect_errno(fmt::format("io_uring command {:#x}", a.user_data), a.res,
                   {-EOPNOTSUPP, -EINVAL, -ENOTTY});
  }
  expect_works(user);
}

KZ_ABI_TEST(unknown_flags, "every flag that a call does not know is refused", 60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : call_shapes())
    for (unsigned bit = 0; bit < 32; ++bit) {
      const uint32_t flag = 1u << bit;
      if ((flag & s.known_flags) != 0 || (flag == KZ_CALL_NOWAIT && s.needs_device)) continue;
      char* p = memory.last(s.size);
      set32(p, s.size);
      set32(p + 4, flag);
      const int rc = raw_call(user.fd(), s.number, p);
      if (rc != -EINVAL)
        wrong("unknown_flag",
              fmt::format("{} with flag {:#x} ended with {}, wanted EINVAL", s.name, flag, rc));
    }
  expect_works(user);
}

KZ_ABI_TEST(reserved_fields, "a reserved field that is not zero is refused", 30s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : call_shapes())
    for (uint32_t at : s.reserved)
      for (uint32_t value : {1u, 0x80000000u}) {
        char* p = memory.last(s.size);
        set32(p, s.size);
        set32(p + at, value);
        const int rc = raw_call(user.fd(), s.number, p);
        if (rc != -EINVAL)
          wrong("reserved",
                fmt::format("{} with {:#x} at byte {} ended with {}, wanted EINVAL", s.name, value, at, rc));
      }
  kz_entry entry{.cmd = {}, .user_data = 1, .timeout_ms = 0, .rsvd = 7};
  kz_ioc_submit a{};
  a.queue = user.queue;
  a.count = 1;
  a.entries = reinterpret_cast<uintptr_t>(&entry);
  expect_errno("SUBMIT with a reserved field", call(user.fd(), KZ_IOC_SUBMIT, a), {-EINVAL});
  expect_works(user);
}

KZ_ABI_TEST(short_buffers, "a structure that ends with its page: nothing behind it is read or written", 60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : call_shapes()) {
    const std::string name = s.name;
    for (uint32_t size : {0u, 1u, 4u, 8u, s.size - 1}) {
      char* p = memory.last(std::max(size, 8u));
      set32(p, size);
      expect_errno(fmt::format("{} of {} bytes", name, size), raw_call(user.fd(), s.number, p),
                   {-EINVAL, -EFAULT});
      if (!memory.untouched_before(p)) wrong("abi", name + " wrote in front of a short structure");
    }
    // Longer than there is memory, and longer with something in the part that we do not know.
    char* p = memory.last(s.size);
    set32(p, s.size + 8);
    expect_errno(name + " beyond the page", raw_call(user.fd(), s.number, p), {-EFAULT});
    p = memory.last(s.size + 8);
    set32(p, s.size + 8);
    p[s.size + 7] = 1;
    expect_errno(name + " with an unknown tail", raw_call(user.fd(), s.number, p), {-E2BIG});
    set32(memory.last(8), 0x7fffffff);
    expect_errno(name + " of 2 GiB", raw_call(user.fd(), s.number, memory.last(8)),
                 {-EINVAL, -E2BIG, -EFAULT});
    expect_errno(name + " at address 0", raw_call(user.fd(), s.number, nullptr), {-EFAULT});
  }
  // What it gives out fits exactly.
  char* p = memory.last(sizeof(kz_info));
  set32(p, sizeof(kz_info));
  EXPECT_EQ(raw_call(user.fd(), KZ_IOC_INFO, p), 0);
  EXPECT_TRUE(memory.untouched_before(p));
  p = memory.last(sizeof(kz_ioc_telemetry));
  set32(p, sizeof(kz_ioc_telemetry));
  expect_errno("TELEMETRY at a page's end", raw_call(user.fd(), KZ_IOC_TELEMETRY, p), {0, -EAGAIN});
  EXPECT_TRUE(memory.untouched_before(p));
}

KZ_ABI_TEST(arrays_at_page_end, "arrays of entries and completions that end with their page", 30s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  kz_ioc_submit s{};
  s.queue = user.queue;
  s.count = 4;  // three lie in memory
  char* p = memory.last(3 * sizeof(kz_entry));
  s.entries = reinterpret_cast<uintptr_t>(p);
  const int rc = call(user.fd(), KZ_IOC_SUBMIT, s);
  const uint32_t taken = rc == 0 ? s.done : 0;
  if (rc != -EFAULT && !(rc == 0 && taken <= 3))
    wrong("abi", fmt::format("SUBMIT of 4 entries of which 3 exist: {}, {} taken", rc, taken));
  if (rc == 0 && s.error != -EFAULT) expect_errno("SUBMIT's error for the missing entry", s.error, {-EFAULT});
  std::vector<kz_done> done;
  if (taken > 0) user.reap(done, taken, taken);
  EXPECT_EQ(user.submit(std::vector<kz_cmd>(4)), 4);
  // Room for two of four: those that cannot be handed out are not lost.
  kz_ioc_reap r{};
  r.queue = user.queue;
  r.max = 4;
  r.min = 4;
  r.timeout_ns = 5'000'000'000;
  p = memory.last(2 * sizeof(kz_done));
  r.entries = reinterpret_cast<uintptr_t>(p);
  const int reaped = call(user.fd(), KZ_IOC_REAP, r);
  const uint32_t got = reaped == 0 ? r.count : 0;
  if (!memory.untouched_before(p)) wrong("abi", "REAP wrote in front of its array");
  expect_errno("REAP into 2 of 4", reaped, {-EFAULT, 0});
  kz_ioc_queue_stat books{};
  books.queue = user.queue;
  EXPECT_EQ(call(user.fd(), KZ_IOC_QUEUE_STAT, books), 0);
  EXPECT_EQ(books.submitted, books.completed + books.lost + books.outstanding) << "the books do not balance";
  EXPECT_LE(got, 2u);
  EXPECT_EQ(user.run(kz_cmd{}) >= 0, true);
}

KZ_ABI_TEST(nothing_leaks, "what a call gives out holds nothing of the kernel's memory", 60s) {
  const Target t = abi_target();
  User user(t.node);
  // Twice over different contents: bytes that follow neither call come from the kernel.
  for (char fill : {'\x00', '\xff'}) {
    std::array<char, 16 * sizeof(kz_done)> room;
    for (int round = 0; round < 50; ++round) {
      room.fill(fill);
      ASSERT_EQ(user.submit(std::vector<kz_cmd>(8)), 8);
      kz_ioc_reap r{};
      r.queue = user.queue;
      r.max = 8;
      r.min = 8;
      r.timeout_ns = 5'000'000'000;
      r.entries = reinterpret_cast<uintptr_t>(room.data());
      ASSERT_EQ(call(user.fd(), KZ_IOC_REAP, r), 0);
      for (uint32_t i = 0; i < r.count; ++i) {
        kz_done d;
        std::memcpy(&d, room.data() + i * sizeof d, sizeof d);
        if (d.rsvd != 0) wrong("padding", fmt::format("REAP gives out {:#x} in a reserved field", d.rsvd));
      }
      for (size_t i = r.count * sizeof(kz_done); i < room.size(); ++i)
        if (room[i] != fill) {
          wrong("abi", fmt::format("REAP wrote byte {} behind {} completions", i, r.count));
          break;
        }
    }
  }
  kz_ioc_telemetry tel{};
  ASSERT_EQ(call(user.fd(), KZ_IOC_TELEMETRY, tel), 0);
  for (uint32_t i = tel.t.ecc_channels; i < KZ_TEL_CHANNELS; ++i)
    if (tel.t.ecc_ce[i] != 0 || tel.t.ecc_ue[i] != 0)
      wrong("padding", "TELEMETRY gives out something for channels that do not exist");
  if (!Ring::allowed()) return;
  // The second half of a wide completion: 0 where there is no result.
  Ring ring(8);
  kz_uring_cmd nop{.cmd = {}, .queue = user.queue, .timeout_ms = 0, .result_at = 0};
  for (int i = 0; i < 50; ++i) {
    ring.add(user.fd(), KZ_URING_SUBMIT, nop, 1);
    ring.submit();
    auto got = ring.answers(1, 10);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_EQ(got[0].res, KZ_ST_OK);
    if (got[0].result != 0)
      wrong("padding", fmt::format("a NOP's completion gives out {:#x} as result", got[0].result));
  }
}

KZ_ABI_TEST(memory_that_is_not_there,
            "a buffer with a page that is missing, or may not be written, is refused each time, whole", 60s) {
  const Target t = abi_target();
  User user(t.node);
  constexpr size_t pages = 8, page = 4096;
  constexpr uint32_t reads = KZ_BUF_DEVICE_READS, writes = KZ_BUF_DEVICE_WRITES;
  struct Case {
    const char* what;
    size_t bad;      // page from which on it is as `protection` says
    int protection;  // -1: not mapped
    uint32_t flags;
  };
  kz_info before{}, after{};
  ASSERT_EQ(call(user.fd(), KZ_IOC_INFO, before), 0);
  for (auto& c :
       {Case{"nothing mapped", 0, -1, reads}, Case{"a hole at the end", pages - 1, -1, reads},
        Case{"a hole in the middle", pages / 2, -1, reads | writes}, Case{"no access", 0, PROT_NONE, reads},
        Case{"no access at the end", pages - 1, PROT_NONE, reads},
        Case{"only readable", 0, PROT_READ, writes},
        Case{"only readable at the end", pages - 1, PROT_READ, reads | writes}}) {
    auto* at = static_cast<char*>(::mmap(nullptr, pages * page, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    ASSERT_NE(at, MAP_FAILED);
    char* bad = at + c.bad * page;
    const size_t rest = (pages - c.bad) * page;
    ASSERT_EQ(c.protection < 0 ? ::munmap(bad, rest) : ::mprotect(bad, rest, c.protection), 0);
    // An error path that gives something back twice may be told only by the second or third time.
    for (int i = 0; i < 16; ++i) {
      kz_ioc_buf b{};
      b.flags = c.flags;
      b.addr = reinterpret_cast<uint64_t>(at);
      b.len = pages * page;
      const int rc = in_time(std::string("register a buffer: ") + c.what, step_limit,
                             [&] { return call(user.fd(), KZ_IOC_BUF_REGISTER, b); });
      expect_errno(fmt::format("BUF_REGISTER with {}", c.what), rc, {-EFAULT});
    }
    ::munmap(at, pages * page);
  }
  ASSERT_EQ(call(user.fd(), KZ_IOC_INFO, after), 0);
  EXPECT_EQ(after.pinned, before.pinned) << "bytes pinned by buffers that were refused";
  expect_works(user);
}

KZ_ABI_TEST(size_overflow, "sizes and counts that overflow are refused, without a word from the kernel",
            60s) {
  const Target t = abi_target();
  User user(t.node);
  for (uint32_t count : {0xffffffffu, 0x80000000u, 0x03333334u, 1u << 30}) {
    kz_ioc_submit s{};
    s.queue = user.queue;
    s.count = count;
    s.entries = 0x1000;
    expect_errno(fmt::format("SUBMIT of {} entries", count), call(user.fd(), KZ_IOC_SUBMIT, s),
                 {-EFAULT, -EINVAL, -E2BIG, -ENOMEM, -EBUSY});
    kz_ioc_reap r{};
    r.queue = user.queue;
    r.max = count;
    r.entries = 0x1000;
    expect_errno(fmt::format("REAP of {} completions", count), call(user.fd(), KZ_IOC_REAP, r),
                 {0, -EFAULT, -EINVAL, -E2BIG, -ENOMEM});
    EXPECT_EQ(r.count, 0u);
  }
  for (uint64_t len : {~0ull, ~0ull - 4095, 1ull << 63, 1ull << 40, (1ull << 40) - 1, 1ull << 62, 0ull})
    for (uint64_t addr : {uint64_t{4096}, uint64_t{0x7ffffffff000}, ~uint64_t{4095}}) {
      kz_ioc_buf b{};
      b.flags = KZ_BUF_DEVICE_READS;
      b.addr = addr;
      b.len = len;
      expect_errno(fmt::format("BUF_REGISTER of {:#x} bytes at {:#x}", len, addr),
                   call(user.fd(), KZ_IOC_BUF_REGISTER, b), {-EINVAL, -ENOMEM, -EFAULT});
    }
  for (uint64_t len : {~0ull, ~0ull - 65535, 1ull << 63, 1ull << 52, 0ull}) {
    kz_ioc_hbm h{};
    h.ctx = user.ctx;
    h.len = len;
    expect_errno(fmt::format("HBM_ALLOC of {:#x} bytes", len), call(user.fd(), KZ_IOC_HBM_ALLOC, h),
                 {-EINVAL, -ENOMEM, -EDQUOT, -ENOSPC});
  }
  for (uint32_t order : {0u, user.info().max_order + 1, 31u, 32u, 63u, 0xffffffffu}) {
    kz_ioc_queue q{};
    q.ctx = user.ctx;
    q.order = order;
    expect_errno(fmt::format("QUEUE_CREATE of order {}", order), call(user.fd(), KZ_IOC_QUEUE_CREATE, q),
                 {-EINVAL});
  }
  expect_works(user);
}

KZ_ABI_TEST(zero_length,
            "commands of no bytes, and of more than there is, end with a status; the driver lives", 60s) {
  const Target t = abi_target();
  User user(t.node);
  for (uint8_t opcode : {KZ_OP_COPY, KZ_OP_FILL, KZ_OP_CRC32C, KZ_OP_MARCH, KZ_OP_MATMUL, KZ_OP_VECTOR}) {
    kz_cmd c{};
    c.opcode = opcode;
    const int rc = user.run(c);
    if (rc <= KZ_ST_OK || rc >= KZ_ST_LOST)
      wrong("zero_length", fmt::format("opcode {:#x} with nothing in it ended with {:#x}", opcode, rc));
  }
  for (uint64_t len : {uint64_t{0}, ~uint64_t{0}, User::buffer_bytes + 1, uint64_t{1} << 40}) {
    kz_cmd c = copy_command(user.hbm, KZ_SP_HBM, user.host, KZ_SP_HOST, len);
    const int rc = user.run(c);
    if (rc <= KZ_ST_OK || rc >= KZ_ST_LOST)
      wrong("size", fmt::format("COPY of {:#x} bytes ended with {:#x}", len, rc));
  }
  expect_works(user);
}

KZ_ABI_TEST(handles, "handles that are not this file's are unknown in every call", 30s) {
  const Target t = abi_target();
  User user(t.node), other(t.node);
  for (uint32_t handle : {other.ctx, 77777u, 0xffffffffu}) {
    if (handle == user.ctx) continue;
    kz_ioc_ctx c{};
    c.ctx = handle;
    expect_errno(fmt::format("CTX_DESTROY of {}", handle), call(user.fd(), KZ_IOC_CTX_DESTROY, c), {-ENOENT});
    kz_ioc_queue q{};
    q.ctx = handle;
    q.order = 3;
    expect_errno(fmt::format("QUEUE_CREATE in context {}", handle), call(user.fd(), KZ_IOC_QUEUE_CREATE, q),
                 {-ENOENT});
    kz_ioc_hbm h{};
    h.ctx = handle;
    h.len = 65536;
    expect_errno(fmt::format("HBM_ALLOC in context {}", handle), call(user.fd(), KZ_IOC_HBM_ALLOC, h),
                 {-ENOENT});
  }
  for (uint32_t handle : {other.queue, 0u, 9999u, 0xffffffffu}) {
    kz_ioc_queue q{};
    q.queue = handle;
    expect_errno(fmt::format("QUEUE_RESET of {}", handle), call(user.fd(), KZ_IOC_QUEUE_RESET, q), {-ENOENT});
    q = {};
    q.queue = handle;
    expect_errno(fmt::format("QUEUE_DESTROY of {}", handle), call(user.fd(), KZ_IOC_QUEUE_DESTROY, q),
                 {-ENOENT});
    kz_ioc_submit s{};
    s.queue = handle;
    s.count = 1;
    kz_entry e{};
    s.entries = reinterpret_cast<uintptr_t>(&e);
    expect_errno(fmt::format("SUBMIT to {}", handle), call(user.fd(), KZ_IOC_SUBMIT, s), {-ENOENT});
  }
  kz_ioc_buf b{};
  b.handle = 4000;
  expect_errno("BUF_UNREGISTER of none", call(user.fd(), KZ_IOC_BUF_UNREGISTER, b), {-ENOENT});
  expect_works(other, "the other user was disturbed");
}

}  // namespace kz::test
