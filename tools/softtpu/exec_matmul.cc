// SPDX-License-Identifier: GPL-2.0-or-later
// MATMUL and VECTOR: from HBM to the units and back. Operands are used in place where they are sound and of
// the unit's type; else they are staged, and the result is as if all operands had been read before the first
// write.
#include <algorithm>
#include <memory>

#include "tools/softtpu/compute.h"
#include "tools/softtpu/exec_core.h"

namespace kz::softtpu {
namespace {

struct Matrix {
  uint64_t addr, rows, cols, ld, element;  // element: bytes
  uint64_t extent() const { return ((rows - 1) * ld + cols) * element; }
};

bool overlap(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len) {
  return a < b + b_len && b < a + a_len;
}

// Rows of HBM into dense memory and back.
uint16_t gather(Core& core, const Pinned& range, const Matrix& m, std::byte* out) {
  uint64_t row = m.cols * m.element;
  if (m.ld == m.cols) return hbm_read(core, range, 0, {out, row * m.rows});
  uint16_t status = KZ_ST_OK;
  for (uint64_t i = 0; i < m.rows; ++i)
    if (hbm_read(core, range, i * m.ld * m.element, {out + i * row, row}) != KZ_ST_OK) status = KZ_ST_POISON;
  return status;
}

void scatter(Core& core, const Pinned& range, const Matrix& m, const std::byte* in) {
  uint64_t row = m.cols * m.element;
  if (m.ld == m.cols) return hbm_write(core, range, 0, {in, row * m.rows});
  for (uint64_t i = 0; i < m.rows; ++i) hbm_write(core, range, i * m.ld * m.element, {in + i * row, row});
}

// An operand as f32.
struct Operand {
  const float* data = nullptr;
  uint64_t ld = 0;
  std::unique_ptr<float[]> own;
  std::unique_ptr<std::byte[]> raw;
};

uint16_t stage(Core& core, const Pinned& range, const Matrix& m, uint8_t dtype, Operand& out) {
  out.raw = std::make_unique_for_overwrite<std::byte[]>(m.rows * m.cols * m.element);
  if (uint16_t s = gather(core, range, m, out.raw.get()); s != KZ_ST_OK) return s;
  out.ld = m.cols;
  out.own = std::make_unique_for_overwrite<float[]>(m.rows * m.cols);
  widen(dtype, out.raw.get(), out.own.get(), m.rows * m.cols);
  out.data = out.own.get();
  return KZ_ST_OK;
}

uint16_t load(Core& core, const Pinned& range, const Matrix& m, uint8_t dtype, bool in_place, Operand& out) {
  std::byte* bytes = hbm_direct(core, range, 0, m.extent());
  if (bytes == nullptr) return stage(core, range, m, dtype, out);
  core.note_read(m.rows * m.cols * m.element);
  if (dtype == KZ_DT_F32 && in_place) {
    out.data = reinterpret_cast<const float*>(bytes);
    out.ld = m.ld;
    return KZ_ST_OK;
  }
  out.ld = m.cols;
  out.own = std::make_unique_for_overwrite<float[]>(m.rows * m.cols);
  if (m.ld == m.cols)
    widen(dtype, bytes, out.own.get(), m.rows * m.cols);
  else
    for (uint64_t i = 0; i < m.rows; ++i)
      widen(dtype, bytes + i * m.ld * m.element, out.own.get() + i * m.cols, m.cols);
  out.data = out.own.get();
  return KZ_ST_OK;
}

uint16_t check_matmul(const kz_matmul& m) {
  if (m.dtype > KZ_DT_F32 || m.accumulate > 1) return KZ_ST_BAD_FIELD;
  auto dim = [](uint32_t d) { return d >= 1 && d <= Core::max_dim; };
  if (!dim(m.m) || !dim(m.n) || !dim(m.k)) return KZ_ST_BAD_LENGTH;
  if (m.lda < m.k || m.ldb < m.n || m.ldc < m.n) return KZ_ST_BAD_LENGTH;
  return (m.a | m.b | m.c) % 64 == 0 ? KZ_ST_OK : KZ_ST_MISALIGNED;
}

class Matmul {
 public:
  Matmul(Core& core, const kz_matmul& m, const Requester& who)
      : core_(core),
        m_(m),
        who_(who),
        a_{m.a, m.m, m.k, m.lda, dtype_bytes(m.dtype)},
        b_{m.b, m.k, m.n, m.ldb, dtype_bytes(m.dtype)},
        c_{m.c, m.m, m.n, m.ldc, 4} {}

  Outcome run() {
    pa_ = core_.memory.pin(who_.context, a_.addr, a_.extent(), false);
    pb_ = core_.memory.pin(who_.context, b_.addr, b_.extent(), false);
    pc_ = core_.memory.pin(who_.context, c_.addr, c_.extent(), true);
    if (!pa_ || !pb_ || !pc_) return ended(KZ_ST_HBM_FAULT);
    if (core_.faults.any()) {
      ComputeFaults faults(core_.faults, m_, core_.thermal.core(), core_.draw());
      if (faults.any()) return ended(run_faulty(faults));
    }
    return ended(run_sound());
  }

 private:
  uint16_t run_sound() {
    bool apart = !overlap(a_.addr, a_.extent(), c_.addr, c_.extent()) &&
                 !overlap(b_.addr, b_.extent(), c_.addr, c_.extent());
    Operand a, b;
    if (uint16_t s = load(core_, pa_, a_, m_.dtype, apart, a); s != KZ_ST_OK) return s;
    if (uint16_t s = load(core_, pb_, b_, m_.dtype, apart, b); s != KZ_ST_OK) return s;
    Shape shape{m_.m, m_.n, m_.k, a.ld, b.ld, m_.ldc, m_.accumulate != 0};
    if (std::byte* c = hbm_direct(core_, pc_, 0, c_.extent()))
      return multiply(shape, a.data, b.data, c) ? KZ_ST_OK : KZ_ST_ABORTED;
    auto c = std::make_unique_for_overwrite<std::byte[]>(c_.rows * c_.cols * 4);
    if (shape.accumulate)
      if (uint16_t s = gather(core_, pc_, c_, c.get()); s != KZ_ST_OK) return s;
    shape.ldc = m_.n;
    if (!multiply(shape, a.data, b.data, c.get())) return KZ_ST_ABORTED;
    scatter(core_, pc_, c_, c.get());
    return KZ_ST_OK;
  }

  bool multiply(const Shape& s, const float* a, const float* b, std::byte* c) const {
    if (m_.dtype == KZ_DT_S8) return product_s8(s, a, b, reinterpret_cast<int32_t*>(c), false, who_.cancel);
    return product_f32(s, a, b, reinterpret_cast<float*>(c), who_.cancel);
  }

  uint16_t run_faulty(const ComputeFaults& faults) {
    Operand a, b;
    if (uint16_t s = stage(core_, pa_, a_, m_.dtype, a); s != KZ_ST_OK) return s;
    if (uint16_t s = stage(core_, pb_, b_, m_.dtype, b); s != KZ_ST_OK) return s;
    std::vector<std::byte> c(c_.rows * c_.cols * 4);
    if (m_.accumulate != 0)
      if (uint16_t s = gather(core_, pc_, c_, c.data()); s != KZ_ST_OK) return s;
    uint64_t a_count = a_.rows * a_.cols, b_count = b_.rows * b_.cols;
    std::vector<float> fa(a.data, a.data + a_count), fb(b.data, b.data + b_count);
    Shape shape{m_.m, m_.n, m_.k, m_.k, m_.n, m_.n, m_.accumulate != 0};
    if (!faults.multiply(shape, fa, fb, c.data(), {a.raw.get(), a_count * a_.element},
                         {b.raw.get(), b_count * b_.element}, who_.cancel))
      return KZ_ST_ABORTED;
    scatter(core_, pc_, c_, c.data());
    return KZ_ST_OK;
  }

  Core& core_;
  const kz_matmul& m_;
  const Requester& who_;
  Matrix a_, b_, c_;
  Pinned pa_, pb_, pc_;
};

// ---- VECTOR ----

bool one_operand(uint8_t op) { return op == KZ_VEC_RELU || op == KZ_VEC_GELU || op >= KZ_VEC_SOFTMAX; }

uint16_t check_vector(const kz_vector& v) {
  if (v.op > KZ_VEC_SUM) return KZ_ST_BAD_FIELD;
  if (one_operand(v.op) && v.b != 0) return KZ_ST_BAD_FIELD;
  bool rows = v.op >= KZ_VEC_SOFTMAX;
  if (!rows && v.cols != 0) return KZ_ST_BAD_FIELD;
  if (v.n == 0 || uint64_t{v.n} * 4 > Core::max_transfer) return KZ_ST_BAD_LENGTH;
  if (rows && (v.cols == 0 || v.n % v.cols != 0)) return KZ_ST_BAD_LENGTH;
  return (v.a | v.b | v.dst) % 4 == 0 ? KZ_ST_OK : KZ_ST_MISALIGNED;
}

// In place where the destination is an operand itself or apart from both.
const float* vector_operand(Core& core, const Pinned& range, uint64_t len, bool in_place,
                            std::vector<float>& own, uint16_t& status) {
  if (in_place)
    if (std::byte* p = hbm_direct(core, range, 0, len)) {
      core.note_read(len);
      return reinterpret_cast<const float*>(p);
    }
  own.resize(len / 4);
  if (hbm_read(core, range, 0, std::as_writable_bytes(std::span(own))) != KZ_ST_OK) status = KZ_ST_POISON;
  return own.data();
}

}  // namespace

Outcome exec_matmul(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_matmul& m = cmd.u.matmul;
  if (uint16_t s = check_matmul(m); s != KZ_ST_OK) return ended(s);
  return Matmul(core, m, who).run();
}

Outcome exec_vector(Core& core, const kz_cmd& cmd, const Requester& who) {
  const kz_vector& v = cmd.u.vector;
  if (uint16_t s = check_vector(v); s != KZ_ST_OK) return ended(s);
  bool two = !one_operand(v.op);
  uint64_t len = uint64_t{v.n} * 4, out_len = v.op == KZ_VEC_SUM ? len / v.cols : len;
  Pinned pa = core.memory.pin(who.context, v.a, len, false), pb;
  if (two) pb = core.memory.pin(who.context, v.b, len, false);
  Pinned pd = core.memory.pin(who.context, v.dst, out_len, true);
  if (!pa || (two && !pb) || !pd) return ended(KZ_ST_HBM_FAULT);
  auto fits = [&](uint64_t operand) {
    return (v.dst == operand && v.op < KZ_VEC_SOFTMAX) || !overlap(v.dst, out_len, operand, len);
  };
  std::vector<float> own_a, own_b, own_d;
  uint16_t status = KZ_ST_OK;
  const float* a = vector_operand(core, pa, len, fits(v.a), own_a, status);
  const float* b = two ? vector_operand(core, pb, len, fits(v.b), own_b, status) : nullptr;
  if (status != KZ_ST_OK) return ended(status);
  auto* dst = reinterpret_cast<float*>(hbm_direct(core, pd, 0, out_len));
  bool staged = dst == nullptr;
  if (staged) {
    own_d.resize(out_len / 4);
    dst = own_d.data();
  }
  if (!vector_op(v.op, a, b, dst, v.n, v.cols, who.cancel)) return ended(KZ_ST_ABORTED);
  if (staged) hbm_write(core, pd, 0, std::as_bytes(std::span(own_d)));
  return ended(KZ_ST_OK);
}

}  // namespace kz::softtpu
