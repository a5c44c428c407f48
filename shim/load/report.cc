// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/report.h"

#include <algorithm>

namespace kz::load {
namespace {

constexpr size_t most_findings = 8;

void add_account(OpAccount& to, const OpAccount& from, bool with_latency) {
  for (auto field : {&OpAccount::sent, &OpAccount::completed, &OpAccount::failed, &OpAccount::cancelled,
                     &OpAccount::lost, &OpAccount::bytes, &OpAccount::verified, &OpAccount::mismatched})
    to.*field += from.*field;
  if (with_latency) to.latency.merge(from.latency);
}

void add_worker(Sum& sum, const WorkerAccount& a) {
  for (size_t o = 0; o < kOps; ++o) {
    if (a.ops[o].outstanding() != 0) ++sum.unbalanced;
    if (a.ops[o].sent == 0 && a.ops[o].latency.count() == 0) continue;
    add_account(sum.ops[o], a.ops[o], true);
    add_account(sum.all, a.ops[o], static_cast<Op>(o) != Op::check);
  }
  for (size_t i = 0; i < kStatuses; ++i) sum.failed_by[i] += a.failed_by[i];
  for (size_t i = 0; i < kCancels; ++i) sum.cancelled_by[i] += a.cancelled_by[i];
  sum.late += a.late;
  sum.late_max_ns = std::max(sum.late_max_ns, a.late_max_ns);
  sum.backlog_max += a.backlog_max;
  sum.not_started += a.not_started;
  sum.ring_full += a.ring_full;
  sum.queue_faults += a.queue_faults;
  sum.device_lost += a.device_lost;
  ++sum.threads;
  if (a.state != WorkerAccount::ended) ++sum.broke_off;
  if (a.ended_ns > a.began_ns)
    sum.seconds = std::max(sum.seconds, static_cast<double>(a.ended_ns - a.began_ns) / 1e9);
  if (a.has_error != 0 && std::ranges::find(sum.errors, a.error) == sum.errors.end())
    sum.errors.emplace_back(a.error);
  if (a.finding[0] != '\0' && sum.findings.size() < most_findings) sum.findings.emplace_back(a.finding);
}

}  // namespace

bool Sum::clean() const {
  return balanced() && all.failed == 0 && all.cancelled == 0 && all.lost == 0 && all.mismatched == 0 &&
         queue_faults == 0 && broke_off == 0 && not_started == 0;
}

std::unique_ptr<Sum> add_up(const Ledger& ledger, const std::function<bool(const WorkerId&)>& which) {
  auto sum = std::make_unique<Sum>();
  for (size_t w = 0; w < ledger.workers().size(); ++w)
    if (which(ledger.workers()[w])) add_worker(*sum, ledger.account(w));
  return sum;
}

std::unique_ptr<Sum> add_up(const Ledger& ledger) {
  return add_up(ledger, [](const WorkerId&) { return true; });
}

}  // namespace kz::load
