// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/compute/rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/compute/operands.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/test.h"

namespace kz::compute {
namespace {

constexpr uint64_t chunk = uint64_t{1} << 20;
constexpr auto budget = std::chrono::seconds(10);

Cap cap_of(Dtype t) {
  switch (t) {
    case Dtype::s8:
      return Cap::matmul_s8;
    case Dtype::bf16:
      return Cap::matmul_bf16;
    case Dtype::f16:
      return Cap::matmul_f16;
    case Dtype::f32:
      break;
  }
  return Cap::matmul_f32;
}

void must_be_ok(const Completion& done, std::string_view command) {
  if (done.status == Status::ok) return;
  throw Error({.code = Errc::status,
               .operation = std::string(command),
               .target = "queue",
               .detail = test::report_status(std::string(command), Status::ok, done.status)});
}

}  // namespace

Rig::Rig(Device& device, Bytes bytes)
    : device_(device),
      context_(device.create_context()),
      block_(context_->alloc(bytes)),
      queue_(test::open_queue(device, *context_)),
      host_(device.dma_buffer({.size = {chunk}})) {}

bool Rig::has(Dtype t) const { return device_.capabilities().has(cap_of(t)); }

std::vector<Dtype> Rig::types() const {
  std::vector<Dtype> all = {Dtype::s8, Dtype::bf16, Dtype::f16, Dtype::f32};
  std::erase_if(all, [&](Dtype t) { return !has(t); });
  return all;
}

std::vector<Dtype> Rig::float_types() const {
  auto all = types();
  std::erase(all, Dtype::s8);
  return all;
}

void Rig::upload(HbmAddr to, std::span<const std::byte> bytes) {
  for (uint64_t done = 0; done < bytes.size(); done += chunk) {
    auto part = bytes.subspan(done, std::min(chunk, bytes.size() - done));
    std::memcpy(host_->bytes().data(), part.data(), part.size());
    must_be_ok(test::run_one(*queue_, {cmd::Copy{at(host_->iova()), at(to + done), part.size()}}, budget),
               "COPY");
  }
}

void Rig::download(HbmAddr from, std::span<std::byte> bytes) {
  for (uint64_t done = 0; done < bytes.size(); done += chunk) {
    auto part = bytes.subspan(done, std::min(chunk, bytes.size() - done));
    must_be_ok(test::run_one(*queue_, {cmd::Copy{at(from + done), at(host_->iova()), part.size()}}, budget),
               "COPY");
    std::memcpy(part.data(), host_->bytes().data(), part.size());
  }
}

Rig::Layout Rig::layout(const Job& job) const {
  HbmAddr a = block_->addr();
  HbmAddr b = a + align_up(job.a.bytes().size(), 64);
  HbmAddr c = b + align_up(job.b.bytes().size(), 64);
  uint64_t end = c - a + job.c.size() * 4;
  if (end > block_->size())
    throw Error({.code = Errc::usage,
                 .operation = "lay out a matmul",
                 .target = job.name,
                 .detail = "it does not fit"});
  return {a, b, c, end};
}

cmd::Matmul Rig::command(const Job& job) const {
  Layout at = layout(job);
  return {.a = at.a,
          .b = at.b,
          .c = at.c,
          .m = job.m(),
          .n = job.n(),
          .k = job.k(),
          .lda = job.a.ld(),
          .ldb = job.b.ld(),
          .ldc = job.ldc,
          .dtype = job.a.dtype(),
          .accumulate = job.accumulate};
}

std::vector<uint32_t> Rig::run(const Job& job) {
  Layout at = layout(job);
  upload(at.a, job.a.bytes());
  upload(at.b, job.b.bytes());
  return rerun(job);
}

std::vector<uint32_t> Rig::rerun(const Job& job) {
  Layout at = layout(job);
  upload(at.c, std::as_bytes(std::span(job.c)));
  must_be_ok(test::run_one(*queue_, {command(job)}, budget), "MATMUL");
  std::vector<uint32_t> c(job.c.size());
  download(at.c, std::as_writable_bytes(std::span(c)));
  return c;
}

bool Rig::check(const Job& job) {
  Golden golden(job, numeric(job.a.dtype()));
  auto got = run(job);
  auto wrong = golden.judge(got);
  if (wrong) report(job, golden, *wrong, got);
  return !wrong;
}

bool Rig::check_repeatable(const Job& job, unsigned times) {
  Golden golden(job, numeric(job.a.dtype()));
  auto first = run(job);
  if (auto wrong = golden.judge(first)) {
    report(job, golden, *wrong, first);
    return false;
  }
  if (!(numeric(job.a.dtype()) & KZ_NUM_DETERMINISTIC)) return true;
  for (unsigned n = 0; n < times; ++n) {
    auto again = rerun(job);
    if (again == first) continue;
    if (!memory_is_good(job, again)) return false;
    uint64_t count = 0;
    for (size_t i = 0; i < first.size(); ++i) count += again[i] != first[i];
    test::evidence(ev::compute_wrong, {{"op", "matmul"},
                                       {"dtype", to_string(job.a.dtype())},
                                       {"shape", {job.m(), job.n(), job.k()}},
                                       {"wrong", count},
                                       {"where", count == 1 ? "element" : "all"},
                                       {"what", "bits"},
                                       {"rerun", "differs"},
                                       {"within_bound", true}});
    ADD_FAILURE() << fmt::format("{}: run {} differs from the first in {} of {} words", job.name, n + 2,
                                 count, first.size());
    return false;
  }
  return true;
}

// What was uploaded must still be there, and what was downloaded must be what the device holds.
bool Rig::intact(HbmAddr where, std::span<const std::byte> want) {
  std::vector<std::byte> got(want.size());
  auto fetch = [&] { download(where, got); };
  fetch();
  auto text = test::check_transfer({.path = "host>hbm>host",
                                    .want = want,
                                    .got = got,
                                    .before = {},
                                    .reread = fetch,
                                    .queue = queue_.get(),
                                    .cells = where,
                                    .cells_len = align_up(want.size(), 8)});
  if (text.empty()) return true;
  ADD_FAILURE() << "operands or result of a wrong matmul are not what was moved: " << text;
  return false;
}

bool Rig::memory_is_good(const Job& job, std::span<const uint32_t> got) {
  Layout at = layout(job);
  if (!intact(at.a, job.a.bytes()) || !intact(at.b, job.b.bytes()) || !intact(at.c, std::as_bytes(got)))
    return false;
  if (test::march_cells(*queue_, at.a, align_up(at.end, 8)) != "bad") return true;
  test::evidence(
      ev::march_mismatch,
      {{"test", "C-"}, {"addr", fmt::format("0x{:x}", at.a.value)}, {"shape", "scattered"}, {"count", 1}});
  ADD_FAILURE() << "the cells under a wrong matmul fail a march";
  return false;
}

void Rig::report(const Job& job, const Golden& golden, const Wrong& wrong, const std::vector<uint32_t>& got) {
  // Before anything else: the march inside destroys the operands, and run() brings them back.
  bool memory_good = memory_is_good(job, got);
  std::string rerun_says = "differs";
  auto again = run(job);
  if (again == got)
    rerun_says = "same";
  else if (!golden.judge(again))
    rerun_says = "good";
  if (memory_good)
    test::evidence(ev::compute_wrong, {{"op", "matmul"},
                                       {"dtype", to_string(job.a.dtype())},
                                       {"shape", {job.m(), job.n(), job.k()}},
                                       {"job", job.name},
                                       {"wrong", wrong.count},
                                       {"where", to_string(wrong.where)},
                                       {"what", to_string(wrong.what)},
                                       {"rerun", rerun_says},
                                       {"max_err", wrong.max_err},
                                       {"bound", wrong.bound},
                                       {"celsius", device_.telemetry().core_celsius.value_or(0)}});
  ADD_FAILURE() << fmt::format("{} {} {}x{}x{}: {}; rerun: {}", job.name, to_string(job.a.dtype()), job.m(),
                               job.n(), job.k(), wrong.text(), rerun_says);
}

}  // namespace kz::compute
