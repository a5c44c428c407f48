// SPDX-License-Identifier: GPL-2.0-or-later
// Work for a device, in neutral words: what a test submits to a Queue. Backends translate.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shim/base/units.h"
#include "shim/uapi/kz_cmd.h"

namespace kz {

// One end of a transfer.
struct Place {
  enum class Space : uint8_t { host, hbm, host_sg } space = Space::host;
  uint64_t addr = 0;   // IOVA, HBM address, or IOVA of an array of kz_sge
  uint16_t sges = 0;   // elements, host_sg only
};
inline Place at(Iova a) { return {Place::Space::host, a.value, 0}; }
inline Place at(HbmAddr a) { return {Place::Space::hbm, a.value, 0}; }
inline Place at_sg(Iova list, uint16_t elements) { return {Place::Space::host_sg, list.value, elements}; }

enum class Dtype : uint8_t { s8 = KZ_DT_S8, bf16 = KZ_DT_BF16, f16 = KZ_DT_F16, f32 = KZ_DT_F32 };
std::string_view to_string(Dtype t);
enum class VectorOp : uint8_t {
  add = KZ_VEC_ADD, mul = KZ_VEC_MUL, sub = KZ_VEC_SUB, max = KZ_VEC_MAX, relu = KZ_VEC_RELU,
  gelu = KZ_VEC_GELU, softmax = KZ_VEC_SOFTMAX, layernorm = KZ_VEC_LAYERNORM, sum = KZ_VEC_SUM
};
enum class MarchOp : uint8_t { w0 = KZ_MARCH_W0, w1 = KZ_MARCH_W1, r0 = KZ_MARCH_R0, r1 = KZ_MARCH_R1 };

namespace cmd {
struct Nop {};
struct Copy { Place src, dst; uint64_t len = 0; };
struct Fill { Place dst; uint64_t len = 0; uint64_t pattern = 0; };
struct Crc32c { Place src; uint64_t len = 0; };                        // result: the CRC
struct March {                                                         // result: mismatching words
  HbmAddr addr; uint64_t len = 0;
  std::vector<MarchOp> ops;                                            // at most KZ_MARCH_OPS
  bool down = false;
  bool own_address = false;                                            // background = address ^ pattern
  uint64_t pattern = 0;
  Iova log; uint16_t log_max = 0;                                      // host array of kz_march_fail
};
struct Matmul {                                                        // C (m x n) = A (m x k) B (k x n) [+ C]
  HbmAddr a, b, c; uint32_t m = 0, n = 0, k = 0;
  uint32_t lda = 0, ldb = 0, ldc = 0;                                  // 0: dense
  Dtype dtype = Dtype::f32; bool accumulate = false;
};
struct Vector { HbmAddr a, b, dst; uint32_t n = 0, cols = 0; VectorOp op = VectorOp::add; };
struct Fence {};
struct Timestamp {};                                                   // result: device ns
struct Abort { uint16_t queue = 0; uint16_t cid = 0; };                // result: 1 aborted
struct EccInject { HbmAddr physical; bool uncorrectable = false; };    // root context
struct FwUpdate { Iova image; uint64_t len = 0; };                     // root context
struct Raw { kz_cmd bytes; };                                          // as is, but for phase and cid; needs Cap::raw_commands
}  // namespace cmd

using Work = std::variant<cmd::Nop, cmd::Copy, cmd::Fill, cmd::Crc32c, cmd::March, cmd::Matmul, cmd::Vector, cmd::Fence,
                          cmd::Timestamp, cmd::Abort, cmd::EccInject, cmd::FwUpdate, cmd::Raw>;

struct Command {
  Work work;
  bool fence = false;  // do not start before all earlier commands of the queue have completed
  bool quiet = false;  // no interrupt for this completion
};

// How a command ended. Values are KZ_ST_*; a status the ABI does not know keeps its number.
enum class Status : uint16_t {
  ok = KZ_ST_OK, bad_opcode = KZ_ST_BAD_OPCODE, bad_field = KZ_ST_BAD_FIELD, bad_length = KZ_ST_BAD_LENGTH,
  misaligned = KZ_ST_MISALIGNED, hbm_fault = KZ_ST_HBM_FAULT, dma_fault = KZ_ST_DMA_FAULT,
  no_memory = KZ_ST_NO_MEMORY, no_context = KZ_ST_NO_CONTEXT, denied = KZ_ST_DENIED, aborted = KZ_ST_ABORTED,
  timeout = KZ_ST_TIMEOUT, poison = KZ_ST_POISON, bad_image = KZ_ST_BAD_IMAGE, busy = KZ_ST_BUSY,
  internal = KZ_ST_INTERNAL,
  lost = 0x7000,  // not from the device: the queue was reset or the device lost before it completed
};
std::string_view to_string(Status s);
std::string name_of(const Work& work);  // "COPY", "MATMUL", ... "opcode 0x7f": an unknown raw one

using Ticket = uint64_t;  // per queue, counts submissions from 1

struct Completion {
  Ticket ticket = 0;
  Status status = Status::ok;
  uint64_t result = 0;
  Clock::time_point submitted;
  Clock::time_point seen;
};

}  // namespace kz
