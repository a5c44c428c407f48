// SPDX-License-Identifier: GPL-2.0-or-later
// The load engine on the device under test: operations of every kind at a constant rate, whatever the device
// does, each of them accounted for and every result looked at.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "shim/load/engine.h"
#include "shim/load/report.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/session.h"
#include "tests/harness/test.h"

namespace kz::test {
namespace {

constexpr double kOpenLoopSeconds = 2.5;

std::string open_loop_profile(const Capabilities& caps, double seconds, uint64_t seed) {
  std::string text =
      fmt::format("[global]\ntime={}ms\nseed={}\ntimeout=4s\n", static_cast<int64_t>(seconds * 1000), seed);
  text += "[copies]\nmix=copy-in:3,copy-out:3,copy-hbm:2,nop\nsize=64-32K\nrate=600\nqueues=2\n";
  std::string others = "alloc,nop";
  if (caps.has(Cap::telemetry)) others += ",telemetry";
  if (caps.has(Cap::matmul_f32)) others += ",matmul:2";
  if (caps.has(Cap::vector)) others += ",vector:2";
  return text + "[others]\nmix=" + others + "\nrate=150\nburst=5\ndim=48\n";
}

// Wrong results as they come in, from several threads, told as facts by those who find them out.
class WrongResults {
 public:
  explicit WrongResults(Device& device) : device_(device) {}

  void add(const load::WrongResult& w) {
    std::lock_guard lock(mutex_);
    if (w.op == load::Op::matmul || w.op == load::Op::vector) return add_computed(w);
    ++copies_;
    const std::string bad =
        check_transfer({.path = "host>hbm>host", .want = w.want, .got = w.got, .cells = w.addr});
    ADD_FAILURE() << (bad.empty() ? "a payload came late: it is right now" : bad);
  }

  // Results come back by copies: where these are wrong too, nothing is said of computing.
  void judge() {
    if (computed_.empty()) return;
    ADD_FAILURE() << wrong_ << " elements of exact results are wrong"
                  << (copies_ > 0 ? ", but copies are as well" : "");
    if (copies_ > 0) return;
    for (auto& detail : computed_) {
      detail["celsius"] = celsius();
      evidence(ev::compute_wrong, detail);
    }
  }

 private:
  static constexpr size_t kMostComputed = 8;

  // Where the device is gone, the evidence stands without it.
  double celsius() {
    try {
      return device_.telemetry().core_celsius.value_or(0);
    } catch (const Error&) {
      return 0;
    }
  }

  void add_computed(const load::WrongResult& w) {
    size_t wrong = 0;
    for (size_t i = 0; i < w.got.size(); i += 4) wrong += std::memcmp(&w.got[i], &w.want[i], 4) != 0 ? 1 : 0;
    wrong_ += wrong;
    if (computed_.size() == kMostComputed) return;
    computed_.push_back({{"op", w.op == load::Op::matmul ? "matmul" : "vector"},
                         {"dtype", "f32"},
                         {"shape", {w.got.size() / 4, 1, 1}},
                         {"wrong", wrong},
                         {"where", wrong == 1 ? "element" : "all"},
                         {"what", "bits"},
                         {"rerun", "unknown"}});
  }

  Device& device_;
  std::mutex mutex_;
  uint64_t copies_ = 0;
  size_t wrong_ = 0;
  std::vector<nlohmann::json> computed_;
};

void judge_books(Device& device, const load::Sum& sum) {
  for (size_t o = 0; o < load::kOps; ++o) {
    const auto& op = sum.ops[o];
    if (op.lost == 0) continue;
    report_stall(device, {.command = std::string(to_string(static_cast<load::Op>(o))), .budget = 4000ms});
    ADD_FAILURE() << op.lost << " operations (" << to_string(static_cast<load::Op>(o))
                  << ") did not complete";
  }
  // Reading telemetry runs no command: what is wrong with it has no status of the device.
  auto failed_by = sum.failed_by;
  const uint64_t bad_telemetry = sum.ops[static_cast<size_t>(load::Op::telemetry)].failed;
  auto& internal = failed_by[static_cast<size_t>(Status::internal)];
  internal -= std::min(internal, bad_telemetry);
  EXPECT_EQ(bad_telemetry, 0u) << fmt::format("{}", fmt::join(sum.findings, "; "));
  for (size_t s = 0; s < load::kStatuses; ++s)
    if (failed_by[s] != 0)
      ADD_FAILURE() << failed_by[s] << " x " << report_status("load", Status::ok, static_cast<Status>(s));
  EXPECT_TRUE(sum.balanced()) << "operations are missing in the account";
  EXPECT_EQ(sum.all.sent, sum.all.completed + sum.all.failed);
  EXPECT_GT(sum.all.verified, 0u);
}

}  // namespace

KZ_TEST(
    soak, open_loop,
    {.meaning = "copies, products, sums, allocations and telemetry at a constant rate: none lost, all right",
     .level = 3,
     .needs = {Cap::dma, Cap::hbm_alloc, Cap::contexts},
     .limit = 40s,
     .scaled = true}) {
  load::Plan plan =
      load::parse_plan(open_loop_profile(caps(), kOpenLoopSeconds * scale(), seed()), "soak.open_loop");
  load::Ledger ledger(plan);
  load::Hooks hooks;
  WrongResults results(device());
  hooks.wrong = [&](const load::WrongResult& w) { results.add(w); };
  hooks.audit = [](uint16_t queue, const QueueAudit& audit) { Session::get().add_audit({queue, audit}); };
  load::run_process(
      plan, 0, ledger, [&](const std::string&) -> Device& { return device(); }, load::Start::now, hooks);
  auto sum = load::add_up(ledger);
  results.judge();
  EXPECT_EQ(sum->all.mismatched, 0u) << fmt::format("{}", fmt::join(sum->findings, "; "));
  for (size_t w = 0; w < ledger.workers().size(); ++w) {
    const auto& a = ledger.account(w);
    // Told as any other test's: the harness knows what a lost device or a call without an answer leaves
    // behind.
    if (a.has_error != 0 && sum->all.lost == 0)
      throw Error({static_cast<Errc>(a.errc), "load", "the device", a.error, "", 0});
  }
  judge_books(device(), *sum);
  metric("load.sent", static_cast<double>(sum->all.sent), "operations");
  metric("load.late", static_cast<double>(sum->late), "operations");
  metric("load.p50", static_cast<double>(sum->all.latency.quantile(0.5)) / 1e3, "us");
  metric("load.p99", static_cast<double>(sum->all.latency.quantile(0.99)) / 1e3, "us");
  EXPECT_EQ(ledger.io_workers(), 0u) << "io_uring handed operations to worker threads";
}

}  // namespace kz::test
