// SPDX-License-Identifier: GPL-2.0-or-later
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "shim/uapi/kz_cmd.h"
#include "shim/uapi/kz_hbm.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

extern "C" unsigned long kz_uapi_sizes_in_c(void);

namespace {

TEST(Uapi, HasTheSameSizesInCAndCxx) {
  EXPECT_EQ(kz_uapi_sizes_in_c(), sizeof(kz_cmd) << 16 | sizeof(kz_cqe) << 8 | sizeof(kz_dbrec));
}

TEST(Uapi, QueueBlocksAndDoorbellsDoNotOverlap) {
  for (unsigned q = 0; q + 1 < 0xff; ++q) {
    EXPECT_GE(KZ_REG_QUEUE(q + 1), KZ_REG_QUEUE(q) + KZ_Q_CQ_TAIL + 4);
    EXPECT_GE(KZ_REG_DOORBELL(q + 1), KZ_REG_DOORBELL(q) + 4);
  }
  EXPECT_LT(KZ_REG_QUEUE(0x40), KZ_REG_TELEMETRY + 1);
  EXPECT_LT(KZ_REG_TELEMETRY + sizeof(kz_telemetry), size_t{KZ_REG_DOORBELL(0)});
  EXPECT_LT(KZ_REG_DOORBELL(0xff), int{KZ_BAR0_SIZE});
}

TEST(Uapi, MsixTableAndPbaHaveTheirOwnPages) {
  // PCI Express r6.0, 7.7.2: no other register in the 4 KiB page of table or PBA.
  EXPECT_EQ(KZ_MSIX_TABLE_OFFSET / 4096, 0u);
  EXPECT_GE(KZ_MSIX_PBA_OFFSET, 4096u);
  EXPECT_LE(KZ_MSIX_PBA_OFFSET + 4096, KZ_BAR2_SIZE);
}

TEST(HbmMap, DefaultGeometrySplitsByHand) {
  // 0x12345678 = row 0x1234 >> ..., worked out bit by bit: 6 byte, 3 channel, 1 pseudo, 4 bank, 5 column,
  // rest row.
  kz_hbm_place p = kz_hbm_split(0x12345678, KZ_GEOM_DEFAULT);
  EXPECT_EQ(p.byte, 0x38u);    // bits 5:0   of ...0111 1000 -> 11 1000
  EXPECT_EQ(p.channel, 1u);    // bits 8:6   of 0x678 = 0110 0111 1000 -> 001
  EXPECT_EQ(p.pseudo, 1u);     // bit 9
  EXPECT_EQ(p.bank, 0x5u);     // bits 13:10 of 0x5678 = 0101 0110 0111 1000 -> 0101
  EXPECT_EQ(p.column, 0x11u);  // bits 18:14 of 0x45678 -> 1 0001
  EXPECT_EQ(p.row, 0x246u);    // bits 31:19 of 0x12345678 = 0x12345678 >> 19
}

TEST(HbmMap, JoinInvertsSplit) {
  std::mt19937_64 rng(7);
  for (unsigned geom : {KZ_GEOM_DEFAULT, KZ_GEOM(5u, 0u, 4u, 6u), KZ_GEOM(0u, 0u, 0u, 0u)})
    for (int i = 0; i < 10000; ++i) {
      uint64_t a = rng() & ((uint64_t{1} << 36) - 1);
      ASSERT_EQ(kz_hbm_join(kz_hbm_split(a, geom), geom), a);
    }
}

}  // namespace
