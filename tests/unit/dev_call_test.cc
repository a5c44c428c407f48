// SPDX-License-Identifier: GPL-2.0-or-later
// What the reference driver's errors and answers mean. Numbers are written out from the text of kz_ioctl.h.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>

#include "shim/dev/call.h"
#include "shim/dev/node.h"
#include "shim/dev/outcome.h"
#include "tests/unit/code_of.h"

namespace kz::dev {
namespace {

struct DevErrnoRow {
  int err;
  uint32_t status;
  Errc code;
};

class DevErrors : public testing::TestWithParam<DevErrnoRow> {};

TEST_P(DevErrors, HaveACode) { EXPECT_EQ(code_of_call(GetParam().err, GetParam().status), GetParam().code); }

INSTANTIATE_TEST_SUITE_P(
    OfTheDriver, DevErrors,
    testing::Values(DevErrnoRow{ENODEV, 0, Errc::gone}, DevErrnoRow{EIO, 0, Errc::gone},
                    DevErrnoRow{ESTALE, 0, Errc::gone}, DevErrnoRow{EPERM, 0, Errc::permission},
                    DevErrnoRow{EACCES, 0, Errc::permission}, DevErrnoRow{EBUSY, 0, Errc::busy},
                    DevErrnoRow{ENOSPC, 0, Errc::busy}, DevErrnoRow{ENOMEM, 0, Errc::no_memory},
                    DevErrnoRow{EDQUOT, 0, Errc::no_memory}, DevErrnoRow{ETIMEDOUT, 0, Errc::timeout},
                    DevErrnoRow{EREMOTEIO, 0, Errc::status}, DevErrnoRow{EINVAL, 0, Errc::usage},
                    DevErrnoRow{ENOTTY, 0, Errc::unsupported}, DevErrnoRow{EFAULT, 0, Errc::io}));

// Where the device ended a command, its status says more than the errno made from it.
INSTANTIATE_TEST_SUITE_P(WithAStatus, DevErrors,
                         testing::Values(DevErrnoRow{ENOMEM, KZ_ST_NO_MEMORY, Errc::no_memory},
                                         DevErrnoRow{ENOSPC, KZ_ST_NO_CONTEXT, Errc::no_memory},
                                         DevErrnoRow{EBUSY, KZ_ST_BUSY, Errc::status},
                                         DevErrnoRow{EACCES, KZ_ST_DENIED, Errc::status},
                                         DevErrnoRow{EINVAL, KZ_ST_BAD_LENGTH, Errc::status},
                                         DevErrnoRow{EREMOTEIO, 0x7ab, Errc::status}));

TEST(DevCall, NamesOperationTargetAndRemedy) {
  try {
    throw_call("open a queue in", "context 7", EPERM);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::permission);
    std::string text = e.what();
    for (const char* word : {"open a queue in", "context 7", "CAP_SYS_ADMIN"})
      EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

TEST(DevCall, SaysHowTheDeviceEndedIt) {
  try {
    throw_call("allocate", "1 MiB of HBM", ENOMEM, KZ_ST_NO_MEMORY);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::no_memory);
    EXPECT_NE(std::string(e.what()).find(to_string(Status::no_memory)), std::string::npos) << e.what();
  }
}

TEST(DevCall, AFileThatIsNoNodeAnswersNotTty) {
  kz_info info{};
  Fd file(::memfd_create("kz-no-node", MFD_CLOEXEC));
  EXPECT_EQ(call(file.get(), KZ_IOC_INFO, info), -ENOTTY);
  EXPECT_EQ(info.argsz, sizeof info);
  EXPECT_EQ(call(-1, KZ_IOC_INFO, info), -EBADF);
}

TEST(DevNode, OnlyTheDriversNodesAreOpened) {
  EXPECT_EQ(code_of([] { open_node("/nowhere/kz0", true); }), Errc::not_found);
  EXPECT_EQ(code_of([] { open_node("/dev/null", true); }), Errc::usage);
  EXPECT_EQ(code_of([] { open_node("/proc/self/status", true); }), Errc::usage);
  EXPECT_EQ(code_of([] { open_node("/tmp", true); }), Errc::usage);
}

TEST(DevOutcome, StatusesAreTheDevices) {
  for (uint16_t status : {KZ_ST_OK, KZ_ST_BAD_FIELD, KZ_ST_POISON, KZ_ST_INTERNAL, 0x123}) {
    Outcome o = outcome_of(status);
    EXPECT_EQ(o.kind, Outcome::Kind::completed) << status;
    EXPECT_EQ(static_cast<uint16_t>(o.status), status);
  }
}

TEST(DevOutcome, WhatWasCutOffIsLost) {
  for (int res : {KZ_ST_LOST, KZ_ST_EXPIRED, -ESTALE, -ENODEV, -EIO, -ECANCELED, -ENOENT}) {
    EXPECT_EQ(outcome_of(res).kind, Outcome::Kind::lost) << res;
    EXPECT_EQ(outcome_of(res).status, Status::lost) << res;
  }
}

TEST(DevOutcome, WhatWasNotTakenIsOfferedAgain) {
  for (int err : {EBUSY, EAGAIN, EINTR, ENOMEM})
    EXPECT_EQ(outcome_of(-err).kind, Outcome::Kind::again) << err;
}

TEST(DevOutcome, WhatIsNeverTakenSaysWhy) {
  for (int err : {EINVAL, EFAULT, EOPNOTSUPP}) {
    EXPECT_EQ(outcome_of(-err).kind, Outcome::Kind::refused) << err;
    EXPECT_EQ(outcome_of(-err).error, err);
  }
}

TEST(DevOutcome, TagsKeepSlotAndTicketApart) {
  for (uint32_t slot : {0u, 1u, 1023u, 65535u})
    for (Ticket ticket : {Ticket{1}, Ticket{1} << 32, (Ticket{1} << 48) - 1}) {
      EXPECT_EQ(slot_of(tag_of(ticket, slot)), slot);
      EXPECT_EQ(ticket_of(tag_of(ticket, slot)), ticket);
    }
}

// A place in host memory is handle << 40 | offset, so that arithmetic on it stays within its buffer.
TEST(DevAddress, IsAHandleAndAnOffset) {
  EXPECT_EQ(KZ_HOST_ADDR(1, 0), 0x100'0000'0000ull);
  EXPECT_EQ(KZ_HOST_ADDR(4096, 0xabc), 0x10'0000'0000'0abcull);
  EXPECT_EQ(Iova{KZ_HOST_ADDR(3, 0)} + 4096, Iova{KZ_HOST_ADDR(3, 4096)});
  EXPECT_NE(KZ_HOST_ADDR(2, 0) - 1, KZ_HOST_ADDR(1, 0))
      << "the end of one buffer is not the next one's start";
  EXPECT_EQ((KZ_HOST_ADDR(2, 0) - 1) >> KZ_HOST_SHIFT, 1u);
}

}  // namespace
}  // namespace kz::dev
