// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include "shim/telemetry.h"
#include "shim/uapi/kz_regs.h"

namespace kz {
namespace {

TEST(FirmwareText, SaysTheFieldsOfTheVersion) {
  EXPECT_EQ(firmware_text(KZ_FW_VERSION(1u, 4u, 2u)), "1.4.2");
  EXPECT_EQ(firmware_text(KZ_FW_VERSION(255u, 255u, 65535u)), "255.255.65535");
  EXPECT_EQ(firmware_text(0), "0.0.0");
}

}  // namespace
}  // namespace kz
