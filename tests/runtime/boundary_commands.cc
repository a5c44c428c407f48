// SPDX-License-Identifier: GPL-2.0-or-later
// Commands that a device must refuse, each with its own status, and then work on.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/harness/diagnose.h"
#include "tests/harness/host_area.h"
#include "tests/harness/read_back.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr uint64_t kBlockLen = 65536;

// A context with memory on both sides, and a good command of each kind to start from.
class Bench {
 public:
  explicit Bench(Device& device)
      : context_(device.create_context()),
        queue_(open_queue(device, *context_)),
        hbm_(context_->alloc({4 * kBlockLen})),
        host_(device, {.size = {kBlockLen}}),
        caps_(device.capabilities()) {}

  uint64_t hbm(uint64_t offset = 0) const { return hbm_->addr().value + offset; }
  uint64_t host() const { return host_.iova().value; }
  HostArea& area() { return host_; }
  QueueGuard& queue() { return *queue_; }

  kz_cmd good(uint8_t opcode) const {
    kz_cmd c{};
    c.opcode = opcode;
    switch (opcode) {
      case KZ_OP_COPY:
        c.u.copy.src = host(), c.u.copy.dst = hbm(), c.u.copy.len = 4096;
        c.u.copy.src_space = KZ_SP_HOST, c.u.copy.dst_space = KZ_SP_HBM;
        break;
      case KZ_OP_FILL:
        c.u.fill.dst = hbm(), c.u.fill.len = 4096, c.u.fill.dst_space = KZ_SP_HBM;
        break;
      case KZ_OP_CRC32C:
        c.u.crc.src = hbm(), c.u.crc.len = 4096, c.u.crc.src_space = KZ_SP_HBM;
        break;
      case KZ_OP_MARCH:
        c.u.march.addr = hbm(), c.u.march.len = 4096, c.u.march.nops = 1, c.u.march.ops[0] = KZ_MARCH_W0;
        break;
      case KZ_OP_MATMUL:
        c.u.matmul.a = hbm(), c.u.matmul.b = hbm(kBlockLen), c.u.matmul.c = hbm(2 * kBlockLen);
        c.u.matmul.m = c.u.matmul.n = c.u.matmul.k = 16;
        c.u.matmul.lda = c.u.matmul.ldb = c.u.matmul.ldc = 16;
        c.u.matmul.dtype = KZ_DT_F32;
        break;
      case KZ_OP_VECTOR:
        c.u.vector.a = hbm(), c.u.vector.b = hbm(kBlockLen), c.u.vector.dst = hbm(2 * kBlockLen),
        c.u.vector.n = 64;
        break;
      default:
        break;
    }
    return c;
  }

  bool offers(uint8_t opcode) const {
    switch (opcode) {
      case KZ_OP_CRC32C:
        return caps_.has(Cap::crc32c);
      case KZ_OP_MARCH:
        return caps_.has(Cap::march);
      case KZ_OP_MATMUL:
        return caps_.has(Cap::matmul_f32);
      case KZ_OP_VECTOR:
        return caps_.has(Cap::vector);
      default:
        return true;
    }
  }

  // Sends it; fails with ev::queue.status unless it ends with one of the statuses.
  void refused(const kz_cmd& command, std::initializer_list<Status> wants, const std::string& what) {
    const std::string name = name_of(cmd::Raw{command}) + " with " + what;
    before_danger("send " + name);
    const Completion done = run_one(*queue_, {cmd::Raw{command}}, 3s);
    if (std::find(wants.begin(), wants.end(), done.status) == wants.end()) {
      if (*wants.begin() == Status::dma_fault && done.status == Status::ok)
        evidence(ev::dma_illegal,
                 {{"how", "unmapped"}, {"status", "OK"}, {"touched", false}, {"command", name}});
      ADD_FAILURE() << report_status(name, *wants.begin(), done.status);
    }
    if (++sent_ % 16 == 0) run_good(*queue_, {cmd::Nop{}});
  }

 private:
  std::unique_ptr<Context> context_;
  std::unique_ptr<QueueGuard> queue_;
  std::unique_ptr<HbmBlock> hbm_;
  HostArea host_;
  const Capabilities& caps_;
  int sent_ = 0;
};

struct Reserved {
  uint8_t opcode;
  size_t offset, size;  // in kz_cmd::u
};
#define KZ_RESERVED(op, type) \
  { op, offsetof(type, rsvd), sizeof(type::rsvd) }
constexpr Reserved kReserved[] = {
    KZ_RESERVED(KZ_OP_COPY, kz_copy),       KZ_RESERVED(KZ_OP_FILL, kz_fill),
    KZ_RESERVED(KZ_OP_CRC32C, kz_crc),      KZ_RESERVED(KZ_OP_MARCH, kz_march),
    KZ_RESERVED(KZ_OP_MATMUL, kz_matmul),   KZ_RESERVED(KZ_OP_VECTOR, kz_vector),
    KZ_RESERVED(KZ_OP_HBM_ALLOC, kz_alloc), KZ_RESERVED(KZ_OP_HBM_FREE, kz_alloc),
    KZ_RESERVED(KZ_OP_ABORT, kz_abort)};
#undef KZ_RESERVED

}  // namespace

KZ_TEST(boundary, reserved_fields,
        {.meaning = "anything in a reserved field, flag or byte of any command is refused as a bad field",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::raw_commands, Cap::hbm_alloc, Cap::dma},
         .limit = 20s}) {
  Bench bench(device());
  for (const auto& r : kReserved) {
    if (!bench.offers(r.opcode)) continue;
    for (size_t at : {size_t{0}, r.size / 2, r.size - 1, rng()() % r.size}) {
      kz_cmd c = bench.good(r.opcode);
      c.u.raw[r.offset + at] = static_cast<uint8_t>(1u << (rng()() % 8));
      bench.refused(c, {Status::bad_field}, fmt::format("reserved byte {} set", r.offset + at));
    }
    kz_cmd c = bench.good(r.opcode);
    c.rsvd = 1u << (rng()() % 32);
    bench.refused(c, {Status::bad_field}, "the header's reserved word set");
    for (unsigned bit = 3; bit < 8; ++bit) {
      c = bench.good(r.opcode);
      c.flags = static_cast<uint8_t>(1u << bit);
      bench.refused(c, {Status::bad_field}, fmt::format("unknown flag {:#x}", 1u << bit));
    }
  }
  for (uint8_t opcode : {KZ_OP_NOP, KZ_OP_TIMESTAMP, KZ_OP_FENCE}) {
    kz_cmd c = bench.good(opcode);
    c.rsvd = 0x80000000;
    bench.refused(c, {Status::bad_field}, "the header's reserved word set");
    c = bench.good(opcode);
    c.flags = 0x80;
    bench.refused(c, {Status::bad_field}, "unknown flag 0x80");
  }
}

KZ_TEST(
    boundary, unknown_values,
    {.meaning = "unknown opcodes, address spaces, types and operations are refused, and the device works on",
     .level = 4,
     .labels = {"destructive"},
     .needs = {Cap::raw_commands, Cap::hbm_alloc, Cap::dma},
     .limit = 20s}) {
  Bench b(device());
  for (uint8_t opcode : {0x0a, 0x0f, 0x16, 0x17, 0x1a, 0x3f, 0x7f, 0x80, 0xff})
    b.refused(b.good(opcode), {Status::bad_opcode}, "an unknown opcode");
  auto with = [&](uint8_t opcode, auto change, std::initializer_list<Status> wants, const std::string& what) {
    if (!b.offers(opcode)) return;
    kz_cmd c = b.good(opcode);
    change(c);
    b.refused(c, wants, what);
  };
  for (uint8_t space : {3, 255}) {
    with(
        KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.src_space = space; }, {Status::bad_field},
        "an unknown source space");
    with(
        KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.dst_space = space; }, {Status::bad_field},
        "an unknown target space");
    with(
        KZ_OP_FILL, [&](kz_cmd& c) { c.u.fill.dst_space = space; }, {Status::bad_field},
        "an unknown target space");
    with(
        KZ_OP_CRC32C, [&](kz_cmd& c) { c.u.crc.src_space = space; }, {Status::bad_field},
        "an unknown source space");
  }
  with(
      KZ_OP_COPY, [](kz_cmd& c) { c.u.copy.src_sges = 1; }, {Status::bad_field}, "elements without a list");
  with(
      KZ_OP_COPY, [](kz_cmd& c) { c.u.copy.src_space = KZ_SP_HOST_SG, c.u.copy.src_sges = 0; },
      {Status::bad_field, Status::bad_length}, "a list of no elements");
  with(
      KZ_OP_COPY, [](kz_cmd& c) { c.u.copy.src_space = KZ_SP_HOST_SG, c.u.copy.src_sges = KZ_SG_MAX + 1; },
      {Status::bad_field, Status::bad_length}, "a list beyond the longest");
  with(
      KZ_OP_FILL, [](kz_cmd& c) { c.u.fill.dst_space = KZ_SP_HOST_SG; }, {Status::bad_field},
      "a list as its target");
  with(
      KZ_OP_MATMUL, [](kz_cmd& c) { c.u.matmul.dtype = 4; }, {Status::bad_field}, "an unknown type");
  with(
      KZ_OP_MATMUL, [](kz_cmd& c) { c.u.matmul.accumulate = 2; }, {Status::bad_field},
      "accumulate neither 0 nor 1");
  with(
      KZ_OP_MATMUL, [](kz_cmd& c) { c.u.matmul.lda = 15; }, {Status::bad_field, Status::bad_length},
      "rows closer than they are long");
  with(
      KZ_OP_VECTOR, [](kz_cmd& c) { c.u.vector.op = KZ_VEC_SUM + 1; }, {Status::bad_field},
      "an unknown operation");
  with(
      KZ_OP_MARCH, [](kz_cmd& c) { c.u.march.ops[0] = 4; }, {Status::bad_field}, "an unknown operation");
  with(
      KZ_OP_MARCH, [](kz_cmd& c) { c.u.march.order = 2; }, {Status::bad_field}, "an unknown order");
  with(
      KZ_OP_MARCH, [](kz_cmd& c) { c.u.march.background = 2; }, {Status::bad_field}, "an unknown background");
  with(
      KZ_OP_MARCH, [](kz_cmd& c) { c.u.march.nops = KZ_MARCH_OPS + 1; },
      {Status::bad_field, Status::bad_length}, "too many operations");
  run_good(b.queue(), {cmd::Fill{at(HbmAddr{b.hbm()}), 4096, 1}});
}

KZ_TEST(boundary, zero_size,
        {.meaning = "commands of no length are refused at once",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::queues, Cap::hbm_alloc, Cap::dma}}) {
  Bench b(device());
  const HbmAddr a{b.hbm()}, c{b.hbm(2 * kBlockLen)};
  auto refused = [&](const Command& command, std::initializer_list<Status> wants) {
    const std::string name = name_of(command.work) + " of no length";
    before_danger("send " + name);
    const Completion done = run_one(b.queue(), command, 3s);
    if (std::find(wants.begin(), wants.end(), done.status) == wants.end())
      ADD_FAILURE() << report_status(name, *wants.begin(), done.status);
    run_good(b.queue(), {cmd::Nop{}});
  };
  refused({cmd::Copy{b.area().place(), at(a), 0}}, {Status::bad_length});
  refused({cmd::Copy{at(a), b.area().place(), 0}}, {Status::bad_length});
  refused({cmd::Fill{at(a), 0, 1}}, {Status::bad_length});
  if (caps().has(Cap::crc32c)) refused({cmd::Crc32c{at(a), 0}}, {Status::bad_length});
  if (caps().has(Cap::march))
    refused({cmd::March{.addr = a, .len = 0, .ops = {MarchOp::w0}}}, {Status::bad_length});
  if (caps().has(Cap::vector))
    refused({cmd::Vector{a, a, c, 0, 0, VectorOp::add}}, {Status::bad_length, Status::bad_field});
  if (!caps().has(Cap::matmul_f32)) return;
  refused({cmd::Matmul{.a = a, .b = a, .c = c, .m = 0, .n = 16, .k = 16, .lda = 16, .ldb = 16, .ldc = 16}},
          {Status::bad_length, Status::bad_field});
  refused({cmd::Matmul{.a = a, .b = a, .c = c, .m = 16, .n = 16, .k = 0, .lda = 16, .ldb = 16, .ldc = 16}},
          {Status::bad_length, Status::bad_field});
}

KZ_TEST(
    boundary, lengths_and_addresses,
    {.meaning =
         "too long, misaligned, out of range and overflowing requests end with the status that the ABI names",
     .level = 4,
     .labels = {"destructive"},
     .needs = {Cap::raw_commands, Cap::hbm_alloc, Cap::dma},
     .limit = 20s}) {
  Bench b(device());
  const auto& limits = caps().limits;
  auto with = [&](uint8_t opcode, auto change, std::initializer_list<Status> wants, const std::string& what) {
    if (!b.offers(opcode)) return;
    kz_cmd c = b.good(opcode);
    change(c);
    b.refused(c, wants, what);
  };
  for (uint64_t len : {limits.max_transfer + 8, uint64_t{1} << 62, ~uint64_t{0}}) {
    with(
        KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.len = len; }, {Status::bad_length},
        "more than the longest transfer");
    with(
        KZ_OP_FILL, [&](kz_cmd& c) { c.u.fill.len = len; }, {Status::bad_length},
        "more than the longest transfer");
    with(
        KZ_OP_CRC32C, [&](kz_cmd& c) { c.u.crc.len = len; }, {Status::bad_length},
        "more than the longest transfer");
    with(
        KZ_OP_MARCH, [&](kz_cmd& c) { c.u.march.len = len & ~uint64_t{7}; }, {Status::bad_length},
        "more than the longest transfer");
  }
  // One byte past the allocation, the end of HBM, and sums beyond 2^64.
  with(
      KZ_OP_FILL, [&](kz_cmd& c) { c.u.fill.dst = b.hbm(4 * kBlockLen - 4095); }, {Status::hbm_fault},
      "one byte past the allocation");
  with(
      KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.dst = b.hbm(4 * kBlockLen - 4095); }, {Status::hbm_fault},
      "one byte past the allocation");
  for (uint64_t addr : {~uint64_t{0} - 100, ~uint64_t{0} - 4094, uint64_t{1} << 63}) {
    with(
        KZ_OP_FILL, [&](kz_cmd& c) { c.u.fill.dst = addr; }, {Status::hbm_fault},
        "an address beyond all memory");
    with(
        KZ_OP_CRC32C, [&](kz_cmd& c) { c.u.crc.src = addr; }, {Status::hbm_fault},
        "an address beyond all memory");
    with(
        KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.dst = addr; }, {Status::hbm_fault},
        "an HBM address beyond all memory");
    with(
        KZ_OP_COPY, [&](kz_cmd& c) { c.u.copy.src = addr; }, {Status::dma_fault},
        "a host address beyond all memory");
  }
  with(
      KZ_OP_MARCH, [&](kz_cmd& c) { c.u.march.addr += 4; }, {Status::misaligned},
      "an address that is no multiple of 8");
  with(
      KZ_OP_MARCH, [&](kz_cmd& c) { c.u.march.len = 4100; }, {Status::bad_length, Status::misaligned},
      "a length that is no multiple of 8");
  with(
      KZ_OP_MATMUL, [&](kz_cmd& c) { c.u.matmul.a += 32; }, {Status::misaligned},
      "an operand that is not aligned to 64");
  with(
      KZ_OP_MATMUL, [&](kz_cmd& c) { c.u.matmul.c += 4; }, {Status::misaligned},
      "a result that is not aligned to 64");
  with(
      KZ_OP_VECTOR, [&](kz_cmd& c) { c.u.vector.a += 2; }, {Status::misaligned},
      "an operand that is not aligned to 4");
  with(
      KZ_OP_MATMUL, [&](kz_cmd& c) { c.u.matmul.m = limits.max_dim + 1; }, {Status::bad_length},
      "more rows than the most");
  with(
      KZ_OP_MATMUL, [&](kz_cmd& c) { c.u.matmul.k = ~0u, c.u.matmul.lda = ~0u; }, {Status::bad_length},
      "2^32-1 columns");
  with(
      KZ_OP_MATMUL, [&](kz_cmd& c) { c.u.matmul.ldb = 0x7fffffff; }, {Status::hbm_fault},
      "rows that lie outside the allocation");
  with(
      KZ_OP_VECTOR, [&](kz_cmd& c) { c.u.vector.n = 0x40000000; }, {Status::hbm_fault, Status::bad_length},
      "more elements than memory");
  with(
      KZ_OP_VECTOR, [&](kz_cmd& c) { c.u.vector.op = KZ_VEC_SOFTMAX, c.u.vector.b = 0, c.u.vector.cols = 7; },
      {Status::bad_length, Status::bad_field}, "columns that do not divide the elements");
  with(
      KZ_OP_VECTOR, [&](kz_cmd& c) { c.u.vector.op = KZ_VEC_SOFTMAX, c.u.vector.b = 0; },
      {Status::bad_length, Status::bad_field}, "no columns");
}

KZ_TEST(boundary, scatter_lists,
        {.meaning = "scatter-gather lists that are misaligned, too short or damaged are refused",
         .level = 4,
         .labels = {"destructive"},
         .needs = {Cap::raw_commands, Cap::dma_sg, Cap::hbm_alloc}}) {
  Bench b(device());
  HostArea data(device(), {.size = {kBlockLen}});
  auto* list = reinterpret_cast<kz_sge*>(b.area().bytes().data());
  auto send = [&](auto change, std::initializer_list<Status> wants, const std::string& what) {
    for (int i = 0; i < 4; ++i) list[i] = {data.iova(i * 8192).value, 1024, 0};
    kz_cmd c = b.good(KZ_OP_COPY);
    c.u.copy.src_space = KZ_SP_HOST_SG;
    c.u.copy.src_sges = 4;
    change(c);
    b.refused(c, wants, what);
  };
  send([](kz_cmd&) {}, {Status::ok}, "a good list");
  send([](kz_cmd& c) { c.u.copy.src += 8; }, {Status::misaligned}, "a list that is not aligned to 16");
  send([](kz_cmd& c) { c.u.copy.len = 4095; }, {Status::bad_length}, "elements longer than the transfer");
  send([](kz_cmd& c) { c.u.copy.len = 4097; }, {Status::bad_length}, "elements shorter than the transfer");
  send([&](kz_cmd&) { list[2].rsvd = 1; }, {Status::bad_field}, "a reserved word of an element set");
  send([&](kz_cmd&) { list[1].len = 0, list[2].len = 2048; }, {Status::bad_length},
       "an element of no length");
  send([&](kz_cmd&) { list[3].addr = 0x7000000000; }, {Status::dma_fault}, "an element that is not mapped");
  send([&](kz_cmd& c) { c.u.copy.src = 0x7000000000; }, {Status::dma_fault}, "a list that is not mapped");
}

KZ_TEST(boundary, nan_and_infinity,
        {.meaning =
             "NaN, infinities and denormals as operands neither hang the device nor disturb the next command",
         .level = 4,
         .needs = {Cap::matmul_f32, Cap::vector, Cap::hbm_alloc, Cap::dma}}) {
  constexpr uint32_t kDim = 16;
  Bench b(device());
  auto values = std::span(reinterpret_cast<float*>(b.area().bytes().data()), kDim * kDim);
  const HbmAddr a{b.hbm()}, c{b.hbm(2 * kBlockLen)};
  const cmd::Matmul matmul{.a = a, .b = a, .c = c, .m = kDim, .n = kDim, .k = kDim};
  auto load = [&](float special, size_t every) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % every == 0 ? special : 1.0f;
    run_good(b.queue(), {cmd::Copy{b.area().place(), at(a), values.size_bytes()}});
  };
  for (float special :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN(), INFINITY,
        -INFINITY, std::numeric_limits<float>::denorm_min(), -0.0f, std::numeric_limits<float>::max()}) {
    for (size_t every : {size_t{1}, size_t{5}}) {
      load(special, every);
      run_good(b.queue(), {matmul});
      for (auto op : {VectorOp::add, VectorOp::mul, VectorOp::max})
        run_good(b.queue(), {cmd::Vector{a, a, c, kDim, 0, op}});
      for (auto op : {VectorOp::relu, VectorOp::gelu})
        run_good(b.queue(), {cmd::Vector{a, {}, c, kDim, 0, op}});
      for (auto op : {VectorOp::softmax, VectorOp::layernorm, VectorOp::sum})
        run_good(b.queue(), {cmd::Vector{a, {}, c, kDim * kDim, kDim, op}});
    }
  }
  load(1.0f, 1);
  run_good(b.queue(), {matmul});
  // The operands first: a product of what did not arrive says nothing.
  HostArea back(device(), {.size = {kBlockLen}});
  const std::vector<std::byte> operands(b.area().bytes().begin(),
                                        b.area().bytes().begin() + values.size_bytes());
  ASSERT_EQ(read_and_check(b.queue(), a, back, operands), "");
  read_into(b.queue(), c, back, values.size_bytes());
  const auto product = std::span(reinterpret_cast<const float*>(back.bytes().data()), values.size());
  const auto wrong = std::ranges::count_if(product, [](float v) { return v != static_cast<float>(kDim); });
  if (wrong)
    evidence(ev::compute_wrong, {{"op", "matmul"},
                                 {"dtype", "f32"},
                                 {"shape", {kDim, kDim, kDim}},
                                 {"wrong", wrong},
                                 {"where", "element"},
                                 {"what", "bits"},
                                 {"rerun", "unknown"},
                                 {"after", "special values"}});
  EXPECT_EQ(wrong, 0) << "a plain product after special values is wrong";
}

}  // namespace kz::test
