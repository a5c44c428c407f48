// SPDX-License-Identifier: GPL-2.0-or-later
// The reference driver's calls at their edges: numbers, flags, sizes, reserved fields, what is given out,
// limits.
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "tests/harness/test.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

// Every ioctl with its structure's size, where its flags and reserved fields lie, and which flags it knows.
struct CallShape {
  const char* name;
  unsigned long number;
  uint32_t size, known_flags;
  bool needs_device;               // knows KZ_CALL_NOWAIT
  std::vector<uint32_t> reserved;  // offsets of 32-bit fields that must be 0
};

const std::vector<CallShape>& shapes() {
  static const std::vector<CallShape> all = {
      {"INFO", KZ_IOC_INFO, sizeof(kz_info), 0, false, {}},
      {"CTX_CREATE", KZ_IOC_CTX_CREATE, sizeof(kz_ioc_ctx), 0, true, {}},
      {"CTX_DESTROY", KZ_IOC_CTX_DESTROY, sizeof(kz_ioc_ctx), 0, true, {}},
      {"QUEUE_CREATE", KZ_IOC_QUEUE_CREATE, sizeof(kz_ioc_queue), KZ_QUEUE_POLLED, true, {}},
      {"QUEUE_DESTROY", KZ_IOC_QUEUE_DESTROY, sizeof(kz_ioc_queue), 0, true, {}},
      {"QUEUE_RESET", KZ_IOC_QUEUE_RESET, sizeof(kz_ioc_queue), 0, true, {}},
      {"QUEUE_STAT", KZ_IOC_QUEUE_STAT, sizeof(kz_ioc_queue_stat), 0, true, {}},
      {"BUF_REGISTER",
       KZ_IOC_BUF_REGISTER,
       sizeof(kz_ioc_buf),
       KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES,
       true,
       {}},
      {"BUF_UNREGISTER", KZ_IOC_BUF_UNREGISTER, sizeof(kz_ioc_buf), 0, true, {}},
      {"HBM_ALLOC", KZ_IOC_HBM_ALLOC, sizeof(kz_ioc_hbm), 0, true, {}},
      {"HBM_FREE", KZ_IOC_HBM_FREE, sizeof(kz_ioc_hbm), 0, true, {}},
      {"HBM_QUERY", KZ_IOC_HBM_QUERY, sizeof(kz_ioc_hbm), 0, true, {}},
      {"SUBMIT", KZ_IOC_SUBMIT, sizeof(kz_ioc_submit), 0, true, {}},
      {"REAP", KZ_IOC_REAP, sizeof(kz_ioc_reap), 0, true, {}},
      {"RESET", KZ_IOC_RESET, sizeof(kz_ioc_reset), 0, true, {offsetof(kz_ioc_reset, rsvd)}},
      {"FW_UPDATE", KZ_IOC_FW_UPDATE, sizeof(kz_ioc_fw), KZ_FW_ACTIVATE, true, {offsetof(kz_ioc_fw, rsvd)}},
      {"ECC_INJECT", KZ_IOC_ECC_INJECT, sizeof(kz_ioc_ecc), 0, true, {offsetof(kz_ioc_ecc, rsvd)}},
      {"TELEMETRY", KZ_IOC_TELEMETRY, sizeof(kz_ioc_telemetry), 0, true, {}},
      {"REG_READ", KZ_IOC_REG_READ, sizeof(kz_ioc_reg), 0, true, {}},
      {"REG_WRITE", KZ_IOC_REG_WRITE, sizeof(kz_ioc_reg), 0, true, {}},
  };
  return all;
}

// Memory whose last byte is followed by a page that nobody may touch.
class PageEnd {
 public:
  PageEnd() {
    void* p = ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw_errno("allocate", "two pages");
    page_ = static_cast<char*>(p);
    ::mprotect(page_ + 4096, 4096, PROT_NONE);
  }
  ~PageEnd() { ::munmap(page_, 8192); }
  PageEnd(const PageEnd&) = delete;
  // `size` zeroed bytes up to the end, the rest of the page filled with 0x5a.
  char* last(size_t size) {
    std::memset(page_, 0x5a, 4096);
    std::memset(page_ + 4096 - size, 0, size);
    return page_ + 4096 - size;
  }
  bool untouched_before(const char* p) const {
    return std::all_of(static_cast<const char*>(page_), p, [](char c) { return c == 0x5a; });
  }

 private:
  char* page_;
};

void set32(char* at, uint32_t value) { std::memcpy(at, &value, sizeof value); }

void expect_errno(const std::string& what, int got, std::initializer_list<int> wanted) {
  if (std::ranges::find(wanted, got) != wanted.end()) return;
  wrong("errno",
        fmt::format("{} ended with {} ({}), wanted {} ({})", what, got, got < 0 ? std::strerror(-got) : "ok",
                    *wanted.begin(), std::strerror(-*wanted.begin())));
}

Target abi_target() {
  Target t = find_target();
  need_our_calls(t);
  return t;
}

#define KZ_ABI_TEST(name, text, seconds) \
  KZ_TEST(kmod_abi, name, {.meaning = text, .level = 4, .labels = takes_driver_away(), .limit = seconds})

}  // namespace

KZ_ABI_TEST(unknown_numbers, "ioctl and io_uring numbers that do not exist are refused, and do nothing",
            60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  std::set<unsigned long> known;
  for (auto& s : shapes()) known.insert(s.number);
  for (unsigned n = 0; n < 256; ++n)
    for (unsigned long number : {static_cast<unsigned long>(_IO(KZ_IOC_TYPE, n)),
                                 static_cast<unsigned long>(_IOC(_IOC_READ | _IOC_WRITE, KZ_IOC_TYPE, n, 16)),
                                 static_cast<unsigned long>(_IO(KZ_IOC_TYPE + 1, n))}) {
      if (known.contains(number)) continue;
      char* p = memory.last(16);
      set32(p, 16);
      expect_errno(fmt::format("ioctl {:#x}", number), raw_ioctl(user.fd(), number, p), {-ENOTTY});
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
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
}

KZ_ABI_TEST(unknown_flags, "every flag that a call does not know is refused", 60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : shapes())
    for (unsigned bit = 0; bit < 32; ++bit) {
      const uint32_t flag = 1u << bit;
      if ((flag & s.known_flags) != 0 || (flag == KZ_CALL_NOWAIT && s.needs_device)) continue;
      char* p = memory.last(s.size);
      set32(p, s.size);
      set32(p + 4, flag);
      const int rc = raw_ioctl(user.fd(), s.number, p);
      if (rc != -EINVAL)
        wrong("unknown_flag",
              fmt::format("{} with flag {:#x} ended with {}, wanted EINVAL", s.name, flag, rc));
    }
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
}

KZ_ABI_TEST(reserved_fields, "a reserved field that is not zero is refused", 30s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : shapes())
    for (uint32_t at : s.reserved)
      for (uint32_t value : {1u, 0x80000000u}) {
        char* p = memory.last(s.size);
        set32(p, s.size);
        set32(p + at, value);
        const int rc = raw_ioctl(user.fd(), s.number, p);
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
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
}

KZ_ABI_TEST(short_buffers, "a structure that ends with its page: nothing behind it is read or written", 60s) {
  const Target t = abi_target();
  User user(t.node);
  PageEnd memory;
  for (auto& s : shapes()) {
    const std::string name = s.name;
    for (uint32_t size : {0u, 1u, 4u, 8u, s.size - 1}) {
      char* p = memory.last(std::max(size, 8u));
      set32(p, size);
      expect_errno(fmt::format("{} of {} bytes", name, size), raw_ioctl(user.fd(), s.number, p),
                   {-EINVAL, -EFAULT});
      if (!memory.untouched_before(p)) wrong("abi", name + " wrote in front of a short structure");
    }
    // Longer than there is memory, and longer with something in the part that we do not know.
    char* p = memory.last(s.size);
    set32(p, s.size + 8);
    expect_errno(name + " beyond the page", raw_ioctl(user.fd(), s.number, p), {-EFAULT});
    p = memory.last(s.size + 8);
    set32(p, s.size + 8);
    p[s.size + 7] = 1;
    expect_errno(name + " with an unknown tail", raw_ioctl(user.fd(), s.number, p), {-E2BIG});
    set32(memory.last(8), 0x7fffffff);
    expect_errno(name + " of 2 GiB", raw_ioctl(user.fd(), s.number, memory.last(8)),
                 {-EINVAL, -E2BIG, -EFAULT});
    expect_errno(name + " at address 0", raw_ioctl(user.fd(), s.number, nullptr), {-EFAULT});
  }
  // What it gives out fits exactly.
  char* p = memory.last(sizeof(kz_info));
  set32(p, sizeof(kz_info));
  EXPECT_EQ(raw_ioctl(user.fd(), KZ_IOC_INFO, p), 0);
  EXPECT_TRUE(memory.untouched_before(p));
  p = memory.last(sizeof(kz_ioc_telemetry));
  set32(p, sizeof(kz_ioc_telemetry));
  expect_errno("TELEMETRY at a page's end", raw_ioctl(user.fd(), KZ_IOC_TELEMETRY, p), {0, -EAGAIN});
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
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
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
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
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
  EXPECT_EQ(other.run(other.copies(1)[0]), KZ_ST_OK) << "the other user was disturbed";
}

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
  EXPECT_EQ(user.run(user.copies(1)[0]), KZ_ST_OK);
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
  User again(t.node);
  EXPECT_EQ(again.run(again.copies(1)[0]), KZ_ST_OK);
}

}  // namespace kz::test
