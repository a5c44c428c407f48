// SPDX-License-Identifier: GPL-2.0-or-later
// How each command ends: every reserved field, limit and range of kz_cmd.h.
#include <functional>
#include <map>
#include <thread>

#include "tests/unit/softtpu_engine_rig.h"

namespace kz::softtpu {
namespace {

using rig::hbm_bytes;
using rig::high;
using rig::host;
using rig::page;

class SofttpuStatus : public rig::Rig {
 protected:
  using Edit = std::function<void(kz_cmd&)>;
  struct Case {
    const char* what;
    Edit edit;
    uint16_t status;
  };

  // The base command must be good; each case spoils one thing.
  void table(const kz_cmd& base, const std::vector<Case>& cases) {
    EXPECT_EQ(run(base).status, KZ_ST_OK) << "opcode " << int(base.opcode);
    for (const Case& c : cases) {
      kz_cmd cmd = base;
      c.edit(cmd);
      EXPECT_EQ(run(cmd).status, c.status) << "opcode " << int(base.opcode) << ": " << c.what;
      EXPECT_EQ(bus.held, 0) << c.what;
    }
    reserved(base);
  }

  // Every byte that no field covers must be zero: found by the layout, not by the code under test.
  void reserved(const kz_cmd& base) {
    static const std::map<uint8_t, size_t> used = {
        {KZ_OP_NOP, 0},        {KZ_OP_COPY, 30},       {KZ_OP_FILL, 25},      {KZ_OP_CRC32C, 17},
        {KZ_OP_MARCH, 49},     {KZ_OP_MATMUL, 50},     {KZ_OP_VECTOR, 33},    {KZ_OP_TIMESTAMP, 0},
        {KZ_OP_CTX_CREATE, 0}, {KZ_OP_CTX_DESTROY, 4}, {KZ_OP_HBM_ALLOC, 20}, {KZ_OP_HBM_FREE, 20},
        {KZ_OP_HBM_QUERY, 20}, {KZ_OP_HBM_STAT, 0},    {KZ_OP_FW_UPDATE, 30}, {KZ_OP_ECC_INJECT, 9}};
    for (size_t i = used.at(base.opcode); i < sizeof base.u.raw; ++i) {
      kz_cmd cmd = base;
      cmd.u.raw[i] = 0x80;
      EXPECT_EQ(run(cmd).status, KZ_ST_BAD_FIELD) << "opcode " << int(base.opcode) << " payload byte " << i;
    }
    for (unsigned bit = 0; bit < 32; ++bit) {
      kz_cmd cmd = base;
      cmd.rsvd = 1u << bit;
      EXPECT_EQ(run(cmd).status, KZ_ST_BAD_FIELD) << "rsvd bit " << bit;
    }
    for (unsigned bit = 3; bit < 8; ++bit) {
      kz_cmd cmd = base;
      cmd.flags = static_cast<uint8_t>(1u << bit);
      EXPECT_EQ(run(cmd).status, KZ_ST_BAD_FIELD) << "flag " << bit;
    }
  }
  static constexpr uint64_t max_transfer = uint64_t{64} << 20;
};

TEST_F(SofttpuStatus, UnknownOpcodes) {
  for (unsigned op = 0; op < 256; ++op) {
    bool known = op <= KZ_OP_TIMESTAMP || (op >= KZ_OP_CTX_CREATE && op <= KZ_OP_HBM_STAT) ||
                 op == KZ_OP_FW_UPDATE || op == KZ_OP_ECC_INJECT;
    known = known && op != KZ_OP_FENCE;  // the front's, as ABORT is
    uint16_t status = run(command(static_cast<uint8_t>(op))).status;
    EXPECT_EQ(status == KZ_ST_BAD_OPCODE, !known) << op;
  }
}

TEST_F(SofttpuStatus, KnownFlagsAreAccepted) {
  kz_cmd c = command(KZ_OP_NOP);
  c.flags = KZ_CMD_PHASE | KZ_CMD_FENCE | KZ_CMD_NOIRQ;
  EXPECT_EQ(run(c).status, KZ_ST_OK);
}

TEST_F(SofttpuStatus, Plain) {
  for (uint8_t op : {KZ_OP_NOP, KZ_OP_TIMESTAMP, KZ_OP_HBM_STAT, KZ_OP_CTX_CREATE}) reserved(command(op));
  uint64_t before = ok(command(KZ_OP_TIMESTAMP)), after = ok(command(KZ_OP_TIMESTAMP));
  EXPECT_LE(before, after);
  EXPECT_LE(after, engine->device_ns());
}

TEST_F(SofttpuStatus, Copy) {
  kz_sge* list = reinterpret_cast<kz_sge*>(at_host(host + 0x1000));
  list[0] = {host + 0x2000, 100, 0};
  list[1] = {host + 0x3000, 28, 0};
  table(
      to_hbm(host, 0x100, 128),
      {{"zero", [](kz_cmd& c) { c.u.copy.len = 0; }, KZ_ST_BAD_LENGTH},
       {"too long", [](kz_cmd& c) { c.u.copy.len = max_transfer + 1; }, KZ_ST_BAD_LENGTH},
       {"absurd", [](kz_cmd& c) { c.u.copy.len = ~uint64_t{0}; }, KZ_ST_BAD_LENGTH},
       {"space", [](kz_cmd& c) { c.u.copy.src_space = 3; }, KZ_ST_BAD_FIELD},
       {"space", [](kz_cmd& c) { c.u.copy.dst_space = 255; }, KZ_ST_BAD_FIELD},
       {"elements without a list", [](kz_cmd& c) { c.u.copy.src_sges = 1; }, KZ_ST_BAD_FIELD},
       {"elements without a list", [](kz_cmd& c) { c.u.copy.dst_sges = 1; }, KZ_ST_BAD_FIELD},
       {"unmapped", [](kz_cmd& c) { c.u.copy.src = 0; }, KZ_ST_DMA_FAULT},
       {"runs out of the window", [](kz_cmd& c) { c.u.copy.src = host + (8 << 20) - 127; }, KZ_ST_DMA_FAULT},
       {"host address overflows", [](kz_cmd& c) { c.u.copy.src = ~uint64_t{0} - 10; }, KZ_ST_DMA_FAULT},
       {"beyond HBM", [](kz_cmd& c) { c.u.copy.dst = hbm_bytes; }, KZ_ST_HBM_FAULT},
       {"past the end of HBM", [](kz_cmd& c) { c.u.copy.dst = hbm_bytes - 127; }, KZ_ST_HBM_FAULT},
       {"HBM address overflows", [](kz_cmd& c) { c.u.copy.dst = ~uint64_t{0} - 10; }, KZ_ST_HBM_FAULT},
       {"up to the end is good", [](kz_cmd& c) { c.u.copy.dst = hbm_bytes - 128; }, KZ_ST_OK},
       {"one byte is good", [](kz_cmd& c) { c.u.copy.len = 1; }, KZ_ST_OK}});
  auto sg = [](uint16_t n) {
    return [n](kz_cmd& c) {
      c.u.copy.src = host + 0x1000;
      c.u.copy.src_space = KZ_SP_HOST_SG;
      c.u.copy.src_sges = n;
    };
  };
  auto after = [&](Edit more) {
    return [=](kz_cmd& c) {
      sg(2)(c);
      more(c);
    };
  };
  table(to_hbm(host, 0x100, 128),
        {{"list", sg(2), KZ_ST_OK},
         {"no elements", sg(0), KZ_ST_BAD_FIELD},
         {"too many", sg(KZ_SG_MAX + 1), KZ_ST_BAD_FIELD},
         {"sum too small", sg(1), KZ_ST_BAD_LENGTH},
         {"sum too large", after([](kz_cmd& c) { c.u.copy.len = 127; }), KZ_ST_BAD_LENGTH},
         {"list misaligned", after([](kz_cmd& c) { c.u.copy.src += 8; }), KZ_ST_MISALIGNED},
         {"list unmapped", after([](kz_cmd& c) { c.u.copy.src = 0x100; }), KZ_ST_DMA_FAULT}});
  kz_cmd two = to_hbm(host, 0x100, 128);
  sg(2)(two);
  list[1].rsvd = 1;
  EXPECT_EQ(run(two).status, KZ_ST_BAD_FIELD);
  list[1] = {host + 0x3000, 0, 0};
  EXPECT_EQ(run(two).status, KZ_ST_BAD_LENGTH);
  list[1] = {0x44, 28, 0};
  EXPECT_EQ(run(two).status, KZ_ST_DMA_FAULT);
  list[1] = {~uint64_t{0} - 5, 28, 0};
  EXPECT_EQ(run(two).status, KZ_ST_DMA_FAULT);
}

TEST_F(SofttpuStatus, HostPermissions) {
  bus.at(1).writable = false;
  EXPECT_EQ(run(to_hbm(high, 0, 64)).status, KZ_ST_OK);
  EXPECT_EQ(run(to_host(0, high, 64)).status, KZ_ST_DMA_FAULT);
  EXPECT_EQ(run(fill(high, 64, 1, KZ_SP_HOST)).status, KZ_ST_DMA_FAULT);
  bus.at(1).writable = true;
  bus.at(1).readable = false;
  EXPECT_EQ(run(to_hbm(high, 0, 64)).status, KZ_ST_DMA_FAULT);
  EXPECT_EQ(run(to_host(0, high, 64)).status, KZ_ST_OK);
}

TEST_F(SofttpuStatus, Fill) {
  table(fill(0x101, 77, 5),
        {{"zero", [](kz_cmd& c) { c.u.fill.len = 0; }, KZ_ST_BAD_LENGTH},
         {"too long", [](kz_cmd& c) { c.u.fill.len = max_transfer + 1; }, KZ_ST_BAD_LENGTH},
         {"list", [](kz_cmd& c) { c.u.fill.dst_space = KZ_SP_HOST_SG; }, KZ_ST_BAD_FIELD},
         {"beyond HBM", [](kz_cmd& c) { c.u.fill.dst = hbm_bytes - 76; }, KZ_ST_HBM_FAULT},
         {"host unmapped", [](kz_cmd& c) { c.u.fill.dst_space = KZ_SP_HOST; }, KZ_ST_DMA_FAULT},
         {"all of HBM", [](kz_cmd& c) { c.u.fill.dst = 0, c.u.fill.len = max_transfer; }, KZ_ST_OK}});
}

TEST_F(SofttpuStatus, Crc) {
  kz_cmd base = command(KZ_OP_CRC32C);
  base.u.crc = {.src = 3, .len = 100, .src_space = KZ_SP_HBM};
  table(base, {{"zero", [](kz_cmd& c) { c.u.crc.len = 0; }, KZ_ST_BAD_LENGTH},
               {"too long", [](kz_cmd& c) { c.u.crc.len = max_transfer + 1; }, KZ_ST_BAD_LENGTH},
               {"list", [](kz_cmd& c) { c.u.crc.src_space = KZ_SP_HOST_SG; }, KZ_ST_BAD_FIELD},
               {"beyond HBM", [](kz_cmd& c) { c.u.crc.src = hbm_bytes - 99; }, KZ_ST_HBM_FAULT},
               {"host unmapped", [](kz_cmd& c) { c.u.crc.src_space = KZ_SP_HOST; }, KZ_ST_DMA_FAULT}});
}

TEST_F(SofttpuStatus, March) {
  table(march(64, 128, {KZ_MARCH_W0, KZ_MARCH_R0}),
        {{"zero", [](kz_cmd& c) { c.u.march.len = 0; }, KZ_ST_BAD_LENGTH},
         {"not words", [](kz_cmd& c) { c.u.march.len = 100; }, KZ_ST_BAD_LENGTH},
         {"too long", [](kz_cmd& c) { c.u.march.len = max_transfer + 8; }, KZ_ST_BAD_LENGTH},
         {"misaligned", [](kz_cmd& c) { c.u.march.addr = 68; }, KZ_ST_MISALIGNED},
         {"no operation", [](kz_cmd& c) { c.u.march.nops = 0; }, KZ_ST_BAD_FIELD},
         {"13 operations", [](kz_cmd& c) { c.u.march.nops = KZ_MARCH_OPS + 1; }, KZ_ST_BAD_FIELD},
         {"operation", [](kz_cmd& c) { c.u.march.ops[1] = 4; }, KZ_ST_BAD_FIELD},
         {"order", [](kz_cmd& c) { c.u.march.order = 2; }, KZ_ST_BAD_FIELD},
         {"background", [](kz_cmd& c) { c.u.march.background = 2; }, KZ_ST_BAD_FIELD},
         {"beyond HBM", [](kz_cmd& c) { c.u.march.addr = hbm_bytes - 120; }, KZ_ST_HBM_FAULT},
         {"overflow", [](kz_cmd& c) { c.u.march.addr = ~uint64_t{63}; }, KZ_ST_HBM_FAULT}});
}

TEST_F(SofttpuStatus, Matmul) {
  kz_cmd base = command(KZ_OP_MATMUL);
  base.u.matmul = {.a = 0,
                   .b = 0x1000,
                   .c = 0x2000,
                   .m = 3,
                   .n = 4,
                   .k = 5,
                   .lda = 5,
                   .ldb = 4,
                   .ldc = 4,
                   .dtype = KZ_DT_F32};
  table(base, {{"m = 0", [](kz_cmd& c) { c.u.matmul.m = 0; }, KZ_ST_BAD_LENGTH},
               {"n = 0", [](kz_cmd& c) { c.u.matmul.n = 0; }, KZ_ST_BAD_LENGTH},
               {"k = 0", [](kz_cmd& c) { c.u.matmul.k = 0; }, KZ_ST_BAD_LENGTH},
               {"m too large", [](kz_cmd& c) { c.u.matmul.m = 4097; }, KZ_ST_BAD_LENGTH},
               {"lda short", [](kz_cmd& c) { c.u.matmul.lda = 4; }, KZ_ST_BAD_LENGTH},
               {"ldb short", [](kz_cmd& c) { c.u.matmul.ldb = 3; }, KZ_ST_BAD_LENGTH},
               {"ldc short", [](kz_cmd& c) { c.u.matmul.ldc = 3; }, KZ_ST_BAD_LENGTH},
               {"dtype", [](kz_cmd& c) { c.u.matmul.dtype = 4; }, KZ_ST_BAD_FIELD},
               {"accumulate", [](kz_cmd& c) { c.u.matmul.accumulate = 2; }, KZ_ST_BAD_FIELD},
               {"a misaligned", [](kz_cmd& c) { c.u.matmul.a = 32; }, KZ_ST_MISALIGNED},
               {"b misaligned", [](kz_cmd& c) { c.u.matmul.b = 0x1004; }, KZ_ST_MISALIGNED},
               {"c misaligned", [](kz_cmd& c) { c.u.matmul.c = 0x2001; }, KZ_ST_MISALIGNED},
               {"a beyond", [](kz_cmd& c) { c.u.matmul.a = hbm_bytes; }, KZ_ST_HBM_FAULT},
               {"b past the end", [](kz_cmd& c) { c.u.matmul.b = hbm_bytes - 64; }, KZ_ST_HBM_FAULT},
               {"c overflows", [](kz_cmd& c) { c.u.matmul.c = ~uint64_t{63}; }, KZ_ST_HBM_FAULT},
               {"last row ends at the end", [](kz_cmd& c) { c.u.matmul.a = hbm_bytes - 64; }, KZ_ST_OK},
               {"huge stride", [](kz_cmd& c) { c.u.matmul.lda = ~0u; }, KZ_ST_HBM_FAULT}});
}

TEST_F(SofttpuStatus, Vector) {
  kz_cmd base = command(KZ_OP_VECTOR);
  base.u.vector = {.a = 0, .b = 0x1000, .dst = 0x2000, .n = 12, .cols = 0, .op = KZ_VEC_ADD};
  table(base, {{"n = 0", [](kz_cmd& c) { c.u.vector.n = 0; }, KZ_ST_BAD_LENGTH},
               {"n too large", [](kz_cmd& c) { c.u.vector.n = (max_transfer / 4) + 1; }, KZ_ST_BAD_LENGTH},
               {"operation", [](kz_cmd& c) { c.u.vector.op = 9; }, KZ_ST_BAD_FIELD},
               {"cols without rows", [](kz_cmd& c) { c.u.vector.cols = 3; }, KZ_ST_BAD_FIELD},
               {"second operand of relu", [](kz_cmd& c) { c.u.vector.op = KZ_VEC_RELU; }, KZ_ST_BAD_FIELD},
               {"misaligned", [](kz_cmd& c) { c.u.vector.a = 2; }, KZ_ST_MISALIGNED},
               {"misaligned", [](kz_cmd& c) { c.u.vector.b = 0x1001; }, KZ_ST_MISALIGNED},
               {"misaligned", [](kz_cmd& c) { c.u.vector.dst = 0x2003; }, KZ_ST_MISALIGNED},
               {"beyond", [](kz_cmd& c) { c.u.vector.a = hbm_bytes - 44; }, KZ_ST_HBM_FAULT},
               {"beyond", [](kz_cmd& c) { c.u.vector.b = hbm_bytes; }, KZ_ST_HBM_FAULT},
               {"beyond", [](kz_cmd& c) { c.u.vector.dst = ~uint64_t{3}; }, KZ_ST_HBM_FAULT}});
  kz_cmd rows = base;
  rows.u.vector.b = 0;
  rows.u.vector.op = KZ_VEC_SOFTMAX;
  rows.u.vector.cols = 4;
  table(rows, {{"cols = 0", [](kz_cmd& c) { c.u.vector.cols = 0; }, KZ_ST_BAD_LENGTH},
               {"cols does not divide", [](kz_cmd& c) { c.u.vector.cols = 5; }, KZ_ST_BAD_LENGTH},
               {"sum is short",
                [](kz_cmd& c) { c.u.vector.op = KZ_VEC_SUM, c.u.vector.dst = hbm_bytes - 12; }, KZ_ST_OK}});
}

TEST_F(SofttpuStatus, Memory) {
  table(alloc(page),
        {{"address given", [](kz_cmd& c) { c.u.alloc.addr = page; }, KZ_ST_BAD_FIELD},
         {"zero", [](kz_cmd& c) { c.u.alloc.len = 0; }, KZ_ST_BAD_LENGTH},
         {"more than there is", [](kz_cmd& c) { c.u.alloc.len = hbm_bytes + 1; }, KZ_ST_NO_MEMORY},
         {"unknown context", [](kz_cmd& c) { c.u.alloc.ctx = 77; }, KZ_ST_NO_CONTEXT}});
  table(memory(KZ_OP_HBM_QUERY, 12345),
        {{"length given", [](kz_cmd& c) { c.u.alloc.len = 1; }, KZ_ST_BAD_FIELD},
         {"beyond", [](kz_cmd& c) { c.u.alloc.addr = hbm_bytes; }, KZ_ST_HBM_FAULT},
         {"unknown context", [](kz_cmd& c) { c.u.alloc.ctx = 77; }, KZ_ST_NO_CONTEXT}});
  kz_cmd f = memory(KZ_OP_HBM_FREE, 40 * page);
  EXPECT_EQ(run(f).status, KZ_ST_HBM_FAULT);
  f.u.alloc.len = 1;
  EXPECT_EQ(run(f).status, KZ_ST_BAD_FIELD);
  reserved(f = memory(KZ_OP_HBM_FREE, 0));
  kz_cmd d = command(KZ_OP_CTX_DESTROY);
  d.u.ctx.ctx = new_context();
  reserved(d);
  EXPECT_EQ(run(d).status, KZ_ST_OK);
}

TEST_F(SofttpuStatus, EccInject) {
  kz_cmd base = command(KZ_OP_ECC_INJECT);
  base.u.ecc.addr = 4096;
  table(base, {{"kind", [](kz_cmd& c) { c.u.ecc.kind = 2; }, KZ_ST_BAD_FIELD},
               {"misaligned", [](kz_cmd& c) { c.u.ecc.addr = 4; }, KZ_ST_MISALIGNED},
               {"beyond", [](kz_cmd& c) { c.u.ecc.addr = hbm_bytes; }, KZ_ST_HBM_FAULT}});
}

TEST_F(SofttpuStatus, Q15_ReservedAccepted) {
  struct {
    unsigned where;
    Edit edit;
  } places[] = {{0, [](kz_cmd& c) { c.rsvd = 1; }},
                {1, [](kz_cmd& c) { c.u.raw[55] = 1; }},
                {2, [](kz_cmd& c) { c.flags = 0x80; }}};
  for (auto& p : places) {
    int id = plant("Q15", {{"where", p.where}});
    for (auto& q : places) {
      kz_cmd c = fill(0, 64, 1);
      q.edit(c);
      EXPECT_EQ(run(c).status, p.where == q.where ? KZ_ST_OK : KZ_ST_BAD_FIELD) << p.where << q.where;
    }
    faults.clear(id);
  }
}

TEST_F(SofttpuStatus, F02_F03) {
  plant("F03");
  EXPECT_EQ(run(fill(0, 0, 1)).kind, Outcome::Kind::hang);
  EXPECT_EQ(run(fill(0, max_transfer + 1, 1)).kind, Outcome::Kind::done) << "not of size zero";
  faults.clear(0);
  plant("F02");
  EXPECT_EQ(run(command(0xee)).kind, Outcome::Kind::crash);
  EXPECT_EQ(run(fill(hbm_bytes, 8, 1)).kind, Outcome::Kind::done)
      << "a fault of the address is no malformed command";
  EXPECT_EQ(run(fill(0, 8, 1)).kind, Outcome::Kind::done);
}

TEST_F(SofttpuStatus, DescribesItself) {
  EXPECT_EQ(*engine->describe(KZ_REG_HBM_SIZE_LO), hbm_bytes);
  EXPECT_EQ(*engine->describe(KZ_REG_HBM_SIZE_HI), 0u);
  EXPECT_EQ(*engine->describe(KZ_REG_HBM_PAGE), page);
  EXPECT_EQ(*engine->describe(KZ_REG_HBM_GEOM), KZ_GEOM_DEFAULT);
  EXPECT_EQ(*engine->describe(KZ_REG_MAX_XFER_LO), max_transfer);
  EXPECT_EQ(*engine->describe(KZ_REG_MAX_DIM), 4096u);
  EXPECT_EQ(*engine->describe(KZ_REG_DTYPES), 0xfu);
  EXPECT_EQ(engine->describe(KZ_REG_CTRL), std::nullopt);
}

// Several workers and the control thread at once: for the thread sanitizer, and no command may fail.
TEST_F(SofttpuStatus, ManyWorkers) {
  std::atomic<bool> stop{false};
  std::atomic<int> bad{0};
  std::vector<std::thread> workers;
  for (uint16_t q = 0; q < 4; ++q)
    workers.emplace_back([&, q] {
      uint64_t own = page * 16 * (q + 1);
      kz_cmd mm = command(KZ_OP_MATMUL);
      mm.u.matmul = {.a = own,
                     .b = own + page,
                     .c = own + 2 * page,
                     .m = 8,
                     .n = 8,
                     .k = 8,
                     .lda = 8,
                     .ldb = 8,
                     .ldc = 8,
                     .dtype = KZ_DT_S8};
      for (int i = 0; i < 100; ++i) {
        Outcome context = run(command(KZ_OP_CTX_CREATE), 0, q);
        auto id = static_cast<uint32_t>(context.result);
        uint64_t addr = run(alloc(page * 3, id), 0, q).result;
        kz_cmd gone = command(KZ_OP_CTX_DESTROY);
        gone.u.ctx.ctx = id;
        for (const kz_cmd& c :
             {fill(own, page, i), to_host(own, host + q * page, page), to_hbm(host + q * page, own, page),
              march(own, page, {KZ_MARCH_W1, KZ_MARCH_R1}), mm, command(KZ_OP_HBM_STAT)})
          bad += run(c, 0, q).status != KZ_ST_OK;
        bad += run(fill(addr, 100, 1), id, q).status != KZ_ST_OK;
        bad += run(gone, 0, q).status != KZ_ST_OK;
      }
    });
  std::thread control([&] {
    while (!stop) {
      faults.clear(plant("M20", {{"addr_frac", 0.5}, {"celsius", 60}}));
      faults.clear(plant("D15"));
      engine->tick();
      telemetry();
      engine->set_ambient(30);
    }
  });
  for (auto& w : workers) w.join();
  stop = true;
  control.join();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(bus.held, 0);
}

}  // namespace
}  // namespace kz::softtpu
