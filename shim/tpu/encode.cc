// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/tpu/encode.h"

#include <fmt/format.h>

#include "shim/base/error.h"

namespace kz::tpu {
namespace {

uint8_t space(const Place& p) { return static_cast<uint8_t>(p.space); }
static_assert(static_cast<int>(Place::Space::host) == KZ_SP_HOST &&
              static_cast<int>(Place::Space::hbm) == KZ_SP_HBM &&
              static_cast<int>(Place::Space::host_sg) == KZ_SP_HOST_SG);

struct Encoder {
  kz_cmd& c;

  void operator()(const cmd::Nop&) { c.opcode = KZ_OP_NOP; }
  void operator()(const cmd::Fence&) { c.opcode = KZ_OP_FENCE; }
  void operator()(const cmd::Timestamp&) { c.opcode = KZ_OP_TIMESTAMP; }
  void operator()(const cmd::Copy& w) {
    c.opcode = KZ_OP_COPY;
    c.u.copy.src = w.src.addr;
    c.u.copy.dst = w.dst.addr;
    c.u.copy.len = w.len;
    c.u.copy.src_space = space(w.src);
    c.u.copy.dst_space = space(w.dst);
    c.u.copy.src_sges = w.src.sges;
    c.u.copy.dst_sges = w.dst.sges;
  }
  void operator()(const cmd::Fill& w) {
    c.opcode = KZ_OP_FILL;
    c.u.fill.dst = w.dst.addr;
    c.u.fill.len = w.len;
    c.u.fill.pattern = w.pattern;
    c.u.fill.dst_space = space(w.dst);
  }
  void operator()(const cmd::Crc32c& w) {
    c.opcode = KZ_OP_CRC32C;
    c.u.crc.src = w.src.addr;
    c.u.crc.len = w.len;
    c.u.crc.src_space = space(w.src);
  }
  void operator()(const cmd::March& w) {
    if (w.ops.size() > KZ_MARCH_OPS)
      throw Error({Errc::usage, "encode", "MARCH",
                   fmt::format("{} operations, at most {}", w.ops.size(), KZ_MARCH_OPS), "", 0});
    c.opcode = KZ_OP_MARCH;
    c.u.march.addr = w.addr.value;
    c.u.march.len = w.len;
    c.u.march.pattern = w.pattern;
    c.u.march.log = w.log.value;
    c.u.march.log_max = w.log_max;
    c.u.march.nops = static_cast<uint8_t>(w.ops.size());
    c.u.march.order = w.down ? KZ_MARCH_DOWN : KZ_MARCH_UP;
    c.u.march.background = w.own_address ? KZ_BG_ADDR : KZ_BG_CONST;
    for (size_t i = 0; i < w.ops.size(); ++i) c.u.march.ops[i] = static_cast<uint8_t>(w.ops[i]);
  }
  void operator()(const cmd::Matmul& w) {
    c.opcode = KZ_OP_MATMUL;
    c.u.matmul.a = w.a.value;
    c.u.matmul.b = w.b.value;
    c.u.matmul.c = w.c.value;
    c.u.matmul.m = w.m;
    c.u.matmul.n = w.n;
    c.u.matmul.k = w.k;
    c.u.matmul.lda = w.lda != 0 ? w.lda : w.k;
    c.u.matmul.ldb = w.ldb != 0 ? w.ldb : w.n;
    c.u.matmul.ldc = w.ldc != 0 ? w.ldc : w.n;
    c.u.matmul.dtype = static_cast<uint8_t>(w.dtype);
    c.u.matmul.accumulate = w.accumulate ? 1 : 0;
  }
  void operator()(const cmd::Vector& w) {
    c.opcode = KZ_OP_VECTOR;
    c.u.vector.a = w.a.value;
    c.u.vector.b = w.b.value;
    c.u.vector.dst = w.dst.value;
    c.u.vector.n = w.n;
    c.u.vector.cols = w.cols;
    c.u.vector.op = static_cast<uint8_t>(w.op);
  }
  void operator()(const cmd::Abort& w) {
    c.opcode = KZ_OP_ABORT;
    c.u.abort.queue = w.queue;
    c.u.abort.cid = w.cid;
  }
  void operator()(const cmd::EccInject& w) {
    c.opcode = KZ_OP_ECC_INJECT;
    c.u.ecc.addr = w.physical.value;
    c.u.ecc.kind = w.uncorrectable ? KZ_ECC_UE : KZ_ECC_CE;
  }
  void operator()(const cmd::FwUpdate& w) {
    c.opcode = KZ_OP_FW_UPDATE;
    c.u.copy.src = w.image.value;
    c.u.copy.len = w.len;
    c.u.copy.src_space = KZ_SP_HOST;
  }
  void operator()(const cmd::Raw& w) { c = w.bytes; }
};

}  // namespace

kz_cmd encode(const Command& command) {
  kz_cmd c{};
  std::visit(Encoder{c}, command.work);
  if (command.fence) c.flags |= KZ_CMD_FENCE;
  if (command.quiet) c.flags |= KZ_CMD_NOIRQ;
  return c;
}

}  // namespace kz::tpu
