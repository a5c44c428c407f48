// SPDX-License-Identifier: GPL-2.0-or-later
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/base/bdf.h"
#include "shim/base/error.h"
#include "shim/base/fd.h"
#include "shim/base/units.h"
#include "tests/unit/code_of.h"

namespace kz {
namespace {

using ::testing::HasSubstr;

TEST(Bytes, ReadsNumbersWithBinaryUnits) {
  EXPECT_EQ(parse_bytes("4096").value, 4096u);
  EXPECT_EQ(parse_bytes("0x1000").value, 4096u);
  EXPECT_EQ(parse_bytes("64M").value, 67108864u);
  EXPECT_EQ(parse_bytes("64MiB").value, 67108864u);
  EXPECT_EQ(parse_bytes("1g").value, 1073741824u);
  EXPECT_EQ(parse_bytes("3T").value, 3298534883328u);
  EXPECT_EQ(parse_bytes("18446744073709551615").value, 18446744073709551615u);
}

TEST(Bytes, RefusesWhatIsNoSize) {
  for (const char* bad : {"", "M", "-1", "1.5G", "64 M", "64X", "64MM", "64MiBs", "0x",
                          "18446744073709551616", "16777216T", "1e3"})
    EXPECT_EQ(code_of([&] { parse_bytes(bad); }), Errc::usage) << bad;
}

TEST(Bytes, PrintsTheLargestExactUnit) {
  EXPECT_EQ(to_string(Bytes{0}), "0 B");
  EXPECT_EQ(to_string(Bytes{4097}), "4097 B");
  EXPECT_EQ(to_string(Bytes{65536}), "64 KiB");
  EXPECT_EQ(to_string(Bytes{uint64_t{1} << 30}), "1 GiB");
  EXPECT_EQ(to_string(Bytes{1048577}), "1.0 MiB");
}

TEST(BdfText, RoundTrips) {
  Bdf b = parse_bdf("0000:01:1f.7");
  EXPECT_EQ(b, (Bdf{0, 1, 0x1f, 7}));
  EXPECT_EQ(to_string(b), "0000:01:1f.7");
  EXPECT_EQ(parse_bdf("01:00.0"), (Bdf{0, 1, 0, 0}));
  EXPECT_EQ(to_string(parse_bdf("10000:e1:00.0")), "10000:e1:00.0");  // VMD domains are wider than 16 bits
}

TEST(BdfText, RefusesWhatIsNoAddress) {
  for (const char* bad : {"", "01", "01:00", "0000:01:00", "01:20.0", "01:00.8", "1:00.0", "0000:01:00.0x",
                          "g0:00.0", ":01:00.0", "0000::00.0", "01:00.", ".0", "123456789:01:00.0"})
    EXPECT_EQ(code_of([&] { parse_bdf(bad); }), Errc::usage) << bad;
}

TEST(ErrorText, NamesOperationTargetReasonAndRemedy) {
  Error e({Errc::timeout, "wait for READY", "0000:01:00.0", "status 0x2 after 500 ms of 500 ms",
           "reset the device", 0});
  EXPECT_STREQ(e.what(), "wait for READY 0000:01:00.0: status 0x2 after 500 ms of 500 ms; reset the device");
}

TEST(ErrorText, MapsErrno) {
  struct {
    int err;
    Errc code;
  } const table[] = {{EACCES, Errc::permission}, {EPERM, Errc::permission},
                     {ENOENT, Errc::not_found},  {ENODEV, Errc::not_found},
                     {EBUSY, Errc::busy},        {ENOMEM, Errc::no_memory},
                     {EPIPE, Errc::gone},        {EIO, Errc::io}};
  for (auto& row : table)
    EXPECT_EQ(code_of([&] { throw_errno("open", "/dev/x", row.err); }), row.code) << row.err;
}

TEST(FdOwner, ClosesOnceAndMoves) {
  Fd a = make_eventfd(true);
  int raw = a.get();
  Fd b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(b.get(), raw);
  b.reset();
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST(EventFd, CountsAndDrains) {
  Fd e = make_eventfd(true);
  EXPECT_EQ(drain_eventfd(e.get()), 0u);
  signal_eventfd(e.get());
  signal_eventfd(e.get(), 4);
  EXPECT_EQ(drain_eventfd(e.get()), 5u);
  EXPECT_EQ(drain_eventfd(e.get()), 0u);
}

TEST(EventFd, FullCounterStaysSignalled) {
  Fd e = make_eventfd(true);
  signal_eventfd(e.get(), 0xfffffffffffffffe);
  EXPECT_NO_THROW(signal_eventfd(e.get()));
  EXPECT_EQ(drain_eventfd(e.get()), 0xfffffffffffffffeu);
}

TEST(Memfd, CannotShrinkUnderAMapping) {
  Fd fd = make_memfd("t", 8_KiB);
  EXPECT_EQ(::ftruncate(fd.get(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
  Mapping m(fd.get(), 4096, 4_KiB, true, "t");
  m.data()[0] = std::byte{7};
  Mapping again(fd.get(), 4096, 4_KiB, false, "t");
  EXPECT_EQ(again.data()[0], std::byte{7});
}

// fcntl(2): F_SEAL_FUTURE_WRITE would keep every later holder from mapping it writable.
TEST(Memfd, NobodyCanSpoilItForTheOthers) {
  for (bool fixed : {false, true}) {
    Fd fd = make_memfd("t", 8_KiB, fixed);
    for (int seal : {F_SEAL_FUTURE_WRITE, F_SEAL_WRITE, F_SEAL_GROW}) {
      EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seal), -1) << seal;
      EXPECT_EQ(errno, EPERM);
    }
    EXPECT_EQ(::ftruncate(fd.get(), 16384), fixed ? -1 : 0);
  }
}

TEST(EventFd, SharedWithSomebodyWhoFilledIt) {
  Fd e = make_eventfd(false);  // blocking: a write to a full one would wait
  signal_eventfd(e.get(), 0xfffffffffffffffe);
  signal_shared_eventfd(e.get());
  EXPECT_EQ(drain_eventfd(e.get()), 0xfffffffffffffffeu);
  signal_shared_eventfd(e.get());
  EXPECT_EQ(drain_eventfd(e.get()), 1u);
}

TEST(DeadlineClock, KeepsItsBudget) {
  Deadline d(0ns);
  EXPECT_TRUE(d.passed());
  EXPECT_EQ(d.left(), 0ns);
  Deadline far(1h);
  EXPECT_FALSE(far.passed());
  EXPECT_GT(far.left(), 59min);
  EXPECT_EQ(far.budget(), 1h);
}

}  // namespace
}  // namespace kz
