// SPDX-License-Identifier: GPL-2.0-or-later
// The vector unit against f64, with the bounds of vector_golden.h.
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/compute/rig.h"
#include "tests/compute/vector_golden.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/test.h"

namespace kz::compute {
namespace {

using namespace test;

const std::vector<Cap> vector_basics = {Cap::queues, Cap::contexts, Cap::dma, Cap::hbm_alloc, Cap::vector};

constexpr std::string_view names[] = {"add",  "mul",     "sub",       "max", "relu",
                                      "gelu", "softmax", "layernorm", "sum"};

struct VectorJob {
  VectorOp op;
  std::vector<float> a, b;
  uint32_t cols = 0;
  std::string_view name() const { return names[static_cast<size_t>(op)]; }
};

class VectorRig {
 public:
  explicit VectorRig(Device& device) : rig_(device) {}

  std::vector<float> run(const VectorJob& job) {
    HbmAddr a = rig_.base(), b = a + align_up(job.a.size() * 4, 64), dst = b + align_up(job.b.size() * 4, 64);
    size_t results = job.op == VectorOp::sum ? job.a.size() / job.cols : job.a.size();
    std::vector<float> out(results, std::bit_cast<float>(0x7fc0cafe));
    rig_.upload(a, std::as_bytes(std::span(job.a)));
    if (!job.b.empty()) rig_.upload(b, std::as_bytes(std::span(job.b)));
    rig_.upload(dst, std::as_bytes(std::span(out)));
    cmd::Vector work{.a = a,
                     .b = job.b.empty() ? HbmAddr{} : b,
                     .dst = dst,
                     .n = static_cast<uint32_t>(job.a.size()),
                     .cols = job.cols,
                     .op = job.op};
    run_ok(rig_.queue(), {work});
    rig_.download(dst, std::as_writable_bytes(std::span(out)));
    return out;
  }

  bool check(const VectorJob& job) {
    auto want = vector_golden(job.op, job.a, job.b, job.cols);
    auto got = run(job);
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < want.size(); ++i)
      if (!agrees(got[i], want[i]) && wrong++ == 0) first = i;
    if (wrong == 0) return true;
    report(job, want, got, wrong, first);
    return false;
  }

 private:
  void report(const VectorJob& job, const std::vector<Expected>& want, const std::vector<float>& got,
              size_t wrong, size_t first) {
    auto again = run(job);
    bool same = std::ranges::equal(std::as_bytes(std::span(again)), std::as_bytes(std::span(got)));
    bool good = agrees(again[first], want[first]);
    double w = want[first].value;
    const char* what = std::isnan(w) || std::isnan(got[first]) ? "nan"
                       : std::isinf(got[first])                ? "inf"
                                                               : "bits";
    bool cells = march_cells(rig_.queue(), rig_.base(), 1 << 20) != "bad";
    if (cells)
      evidence(ev::compute_wrong,
               {{"op", job.name()},
                {"dtype", "f32"},
                {"shape", {job.cols ? job.a.size() / job.cols : 1, job.cols ? job.cols : job.a.size(), 1}},
                {"wrong", wrong},
                {"where", wrong == 1             ? "element"
                          : wrong == want.size() ? "all"
                                                 : "row"},
                {"what", what},
                {"rerun", same   ? "same"
                          : good ? "good"
                                 : "differs"},
                {"max_err", std::fabs(got[first] - w)},
                {"bound", want[first].bound}});
    else
      evidence(ev::march_mismatch,
               {{"test", "C-"}, {"addr", rig_.base().value}, {"shape", "scattered"}, {"count", 1}});
    ADD_FAILURE() << fmt::format(
        "{}: {} of {} wrong, first [{}] of {:.9g}: got {:.9g}, want {:.9g} within {:.3g}", job.name(), wrong,
        want.size(), first, job.a[first % job.a.size()], got[first], w, want[first].bound);
  }

  Rig rig_;
};

std::vector<float> numbers(size_t n, std::mt19937_64& rng) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng) * (rng() % 8 == 0 ? 20.0f : 1.0f);
  return v;
}

constexpr VectorOp two_operands[] = {VectorOp::add, VectorOp::mul, VectorOp::sub, VectorOp::max};
constexpr VectorOp one_operand[] = {VectorOp::relu, VectorOp::gelu};
constexpr VectorOp rows[] = {VectorOp::softmax, VectorOp::layernorm, VectorOp::sum};

KZ_TEST(vector, elementwise,
        {.meaning = "add, sub, mul, max, relu and gelu are right at odd lengths",
         .level = 2,
         .needs = vector_basics,
         .limit = 10s}) {
  VectorRig rig(device());
  for (size_t n : {1, 2, 15, 16, 17, 1000, 65537}) {
    auto a = numbers(n, rng()), b = numbers(n, rng());
    for (VectorOp op : two_operands)
      if (!rig.check({op, a, b})) return;
    for (VectorOp op : one_operand)
      if (!rig.check({op, a, {}})) return;
  }
}

KZ_TEST(vector, rows,
        {.meaning = "softmax, layernorm and sum are right for short, odd and long rows",
         .level = 2,
         .needs = vector_basics,
         .limit = 10s}) {
  VectorRig rig(device());
  for (auto [count, cols] : {std::pair{1u, 1u}, {3, 7}, {5, 16}, {2, 1000}, {33, 129}})
    for (VectorOp op : rows)
      if (!rig.check({op, numbers(size_t{count} * cols, rng()), {}, cols})) return;
  // Large arguments must not overflow the exponential.
  std::vector<float> large = {1000, 1001, 999, -1000, 1000, 500};
  rig.check({VectorOp::softmax, large, {}, 6});
}

KZ_TEST(vector, special_values,
        {.meaning = "NaN, infinity, overflow and tiny values through the elementwise operations",
         .level = 4,
         .needs = vector_basics,
         .limit = 10s}) {
  VectorRig rig(device());
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values = {0, -0.0f, 1, -1, inf, -inf, nan, 3e38f, -3e38f, 1e-30f, -1e-30f, 2.5f};
  std::vector<float> a, b;
  for (float x : values)
    for (float y : values) a.push_back(x), b.push_back(y);
  for (VectorOp op : two_operands)
    if (!rig.check({op, a, b})) return;
  for (VectorOp op : one_operand)
    if (!rig.check({op, values, {}})) return;
}

}  // namespace
}  // namespace kz::compute
