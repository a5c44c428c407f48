// SPDX-License-Identifier: GPL-2.0-or-later
// Neutral work as the 64 bytes of shim/uapi/kz_cmd.h. Offsets and numbers are written out here from the ABI's
// text, so that a structure that shifts, or a field that goes to the wrong place, shows.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <string>

#include "shim/base/error.h"
#include "shim/capability.h"
#include "shim/tpu/device.h"
#include "shim/tpu/encode.h"
#include "shim/tpu/registers.h"
#include "shim/uapi/kz_regs.h"
#include "shim/uapi/kz_telemetry.h"

namespace kz::tpu {
namespace {

using Bytes64 = std::array<uint8_t, 64>;

Bytes64 bytes(const Command& command) {
  kz_cmd c = encode(command);
  Bytes64 b;
  std::memcpy(b.data(), &c, 64);
  return b;
}

// The expected command: all zero but for what is put.
class Expected {
 public:
  explicit Expected(uint8_t opcode, uint8_t flags = 0) { b_[0] = opcode, b_[1] = flags; }
  Expected& put(size_t at, uint64_t value, unsigned width) {
    for (unsigned i = 0; i < width; ++i) b_[at + i] = static_cast<uint8_t>(value >> (8 * i));
    return *this;
  }
  const Bytes64& bytes() const { return b_; }

 private:
  Bytes64 b_{};
};

TEST(TpuEncode, PutsEveryFieldInItsPlace) {
  EXPECT_EQ(bytes({cmd::Nop{}}), Expected(0x00).bytes());
  EXPECT_EQ(bytes({cmd::Fence{}}), Expected(0x07).bytes());
  EXPECT_EQ(bytes({cmd::Timestamp{}}), Expected(0x08).bytes());
  EXPECT_EQ(
      bytes({cmd::Copy{at(Iova{0x1122334455667788}), at(HbmAddr{0x99aabbccddeeff00}), 0x123456789abcdef0}}),
      Expected(0x01)
          .put(8, 0x1122334455667788, 8)
          .put(16, 0x99aabbccddeeff00, 8)
          .put(24, 0x123456789abcdef0, 8)
          .put(32, 0, 1)
          .put(33, 1, 1)
          .bytes());
  EXPECT_EQ(bytes({cmd::Copy{at_sg(Iova{0x1000}, 256), at_sg(Iova{0x2000}, 3), 64}}), Expected(0x01)
                                                                                          .put(8, 0x1000, 8)
                                                                                          .put(16, 0x2000, 8)
                                                                                          .put(24, 64, 8)
                                                                                          .put(32, 2, 1)
                                                                                          .put(33, 2, 1)
                                                                                          .put(34, 256, 2)
                                                                                          .put(36, 3, 2)
                                                                                          .bytes());
  EXPECT_EQ(
      bytes({cmd::Fill{at(HbmAddr{0x5000}), 77, 0xdeadbeef01020304}}),
      Expected(0x02).put(8, 0x5000, 8).put(16, 77, 8).put(24, 0xdeadbeef01020304, 8).put(32, 1, 1).bytes());
  EXPECT_EQ(bytes({cmd::Crc32c{at(Iova{0x6000}), 9}}),
            Expected(0x03).put(8, 0x6000, 8).put(16, 9, 8).bytes());
  EXPECT_EQ(bytes({cmd::March{.addr = {0x7000},
                              .len = 4096,
                              .ops = {MarchOp::r0, MarchOp::w1, MarchOp::r1, MarchOp::w0},
                              .down = true,
                              .own_address = true,
                              .pattern = 0x5555aaaa5555aaaa,
                              .log = {0x8000},
                              .log_max = 0x1234}}),
            Expected(0x04)
                .put(8, 0x7000, 8)
                .put(16, 4096, 8)
                .put(24, 0x5555aaaa5555aaaa, 8)
                .put(32, 0x8000, 8)
                .put(40, 0x1234, 2)
                .put(42, 4, 1)
                .put(43, 1, 1)
                .put(44, 1, 1)
                .put(45, 2, 1)
                .put(46, 1, 1)
                .put(47, 3, 1)
                .put(48, 0, 1)
                .bytes());
  EXPECT_EQ(bytes({cmd::Matmul{.a = {0x100},
                               .b = {0x200},
                               .c = {0x300},
                               .m = 5,
                               .n = 6,
                               .k = 7,
                               .lda = 70,
                               .ldb = 60,
                               .ldc = 61,
                               .dtype = Dtype::f16,
                               .accumulate = true}}),
            Expected(0x05)
                .put(8, 0x100, 8)
                .put(16, 0x200, 8)
                .put(24, 0x300, 8)
                .put(32, 5, 4)
                .put(36, 6, 4)
                .put(40, 7, 4)
                .put(44, 70, 4)
                .put(48, 60, 4)
                .put(52, 61, 4)
                .put(56, 2, 1)
                .put(57, 1, 1)
                .bytes());
  EXPECT_EQ(bytes({cmd::Matmul{.m = 5, .n = 6, .k = 7, .dtype = Dtype::s8}}), Expected(0x05)
                                                                                  .put(32, 5, 4)
                                                                                  .put(36, 6, 4)
                                                                                  .put(40, 7, 4)
                                                                                  .put(44, 7, 4)
                                                                                  .put(48, 6, 4)
                                                                                  .put(52, 6, 4)
                                                                                  .bytes())
      << "dense: A's rows are k long, B's and C's n";
  EXPECT_EQ(
      bytes({cmd::Vector{.a = {1}, .b = {2}, .dst = {3}, .n = 400, .cols = 20, .op = VectorOp::layernorm}}),
      Expected(0x06)
          .put(8, 1, 8)
          .put(16, 2, 8)
          .put(24, 3, 8)
          .put(32, 400, 4)
          .put(36, 20, 4)
          .put(40, 7, 1)
          .bytes());
  EXPECT_EQ(bytes({cmd::Abort{.queue = 0x1234, .cid = 0x5678}}),
            Expected(0x09).put(8, 0x1234, 2).put(10, 0x5678, 2).bytes());
  EXPECT_EQ(bytes({cmd::EccInject{.physical = {0x4000}, .uncorrectable = true}}),
            Expected(0x19).put(8, 0x4000, 8).put(16, 1, 1).bytes());
  EXPECT_EQ(bytes({cmd::FwUpdate{.image = {0x9000}, .len = 5000}}),
            Expected(0x18).put(8, 0x9000, 8).put(24, 5000, 8).bytes());
}

TEST(TpuEncode, SetsFlags) {
  EXPECT_EQ(bytes({.work = cmd::Nop{}, .fence = true})[1], 0x02);
  EXPECT_EQ(bytes({.work = cmd::Nop{}, .quiet = true})[1], 0x04);
}

TEST(TpuEncode, LeavesRawBytesAsTheyAre) {
  kz_cmd raw;
  std::memset(&raw, 0xa5, sizeof raw);
  kz_cmd out = encode({cmd::Raw{raw}});
  EXPECT_EQ(std::memcmp(&out, &raw, sizeof raw), 0);
}

TEST(TpuEncode, RefusesWhatTheAbiCannotSay) {
  try {
    encode({cmd::March{.ops = std::vector<MarchOp>(13, MarchOp::w0)}});
    ADD_FAILURE() << "13 operations were taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage);
  }
}

TEST(TpuTelemetry, TellsMeasurementsFromAllOnes) {
  kz_telemetry k{};
  k.seq = 4;
  k.temp_core_mc = 45500;
  k.temp_hbm_mc = -1250;
  k.power_mw = 75250;
  k.clock_khz = 1400000;
  k.fan_present = 0;
  k.fan_rpm = 3000;
  k.ecc_channels = 2;
  k.ecc_ce[1] = 7;
  k.hbm_free_bytes = uint64_t{1} << 33;
  Telemetry t = decode_telemetry(std::as_bytes(std::span(&k, 1)));
  EXPECT_FALSE(t.all_ones);
  EXPECT_DOUBLE_EQ(*t.core_celsius, 45.5);
  EXPECT_DOUBLE_EQ(*t.hbm_celsius, -1.25);
  EXPECT_DOUBLE_EQ(*t.power_watts, 75.25);
  EXPECT_DOUBLE_EQ(*t.clock_mhz, 1400.0);
  EXPECT_FALSE(t.fan_rpm) << "a board without fan has no speed, not speed 0";
  EXPECT_EQ(t.ecc_ce, (std::vector<uint32_t>{0, 7}));
  EXPECT_EQ(*t.hbm_free, uint64_t{1} << 33);
  EXPECT_EQ(t.raw_hex.size(), 768u);
  EXPECT_EQ(t.raw_hex.substr(0, 8), "04000000");
  std::memset(&k, 0xff, sizeof k);
  t = decode_telemetry(std::as_bytes(std::span(&k, 1)));
  EXPECT_TRUE(t.all_ones);
  EXPECT_FALSE(t.core_celsius || t.power_watts || t.heartbeat || t.hbm_free)
      << "all ones were read as a measurement";
  k.ecc_channels = 1000;  // more than there is room for
  k.seq = 2;
  EXPECT_EQ(decode_telemetry(std::as_bytes(std::span(&k, 1))).ecc_ce.size(), size_t{KZ_TEL_CHANNELS});
}

TEST(TpuRegisters, HaveNames) {
  EXPECT_EQ(register_name(0x0064), "STATUS (0x0064)");
  EXPECT_EQ(register_name(0x1000), "Q0.CTRL (0x1000)");
  EXPECT_EQ(register_name(0x10c4), "Q3.STATE (0x10c4)");
  EXPECT_EQ(register_name(0x8010), "DOORBELL2 (0x8010)");
  EXPECT_EQ(register_name(0x4010), "TELEMETRY+0x10 (0x4010)");
  EXPECT_EQ(register_name(0x0034), "NUMERIC1 (0x0034)");
  EXPECT_EQ(register_name(0x0ff0), "register 0x0ff0");
}

TEST(CapabilityNames, ReadBack) {
  for (int i = 0; i <= static_cast<int>(Cap::reset_firmware); ++i) {
    auto cap = static_cast<Cap>(i);
    EXPECT_NE(to_string(cap), "unknown") << i;
    EXPECT_EQ(parse_cap(to_string(cap)), cap);
  }
  EXPECT_FALSE(parse_cap("warp_drive"));
}

}  // namespace
}  // namespace kz::tpu
