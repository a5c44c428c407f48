// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/load/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace kz::load {
namespace {

constexpr size_t most_workers = 2048;
constexpr size_t head_bytes = 4096;

Bytes ledger_bytes(size_t workers) { return {align_up(head_bytes + workers * sizeof(WorkerAccount), 4096)}; }

void copy_text(char* to, size_t room, std::string_view text) {
  size_t n = std::min(text.size(), room - 1);
  std::memcpy(to, text.data(), n);
  to[n] = '\0';
}

}  // namespace

std::string_view to_string(Cancel why) {
  constexpr std::string_view names[kCancels] = {"stopped", "reset", "device-gone", "process-died"};
  return names[static_cast<size_t>(why)];
}

std::string status_name(size_t index) {
  return index + 1 < kStatuses ? std::string(to_string(static_cast<Status>(index))) : "other";
}

void WorkerAccount::fail(State how, const Error& e) {
  if (has_error == 0) {
    copy_text(error, sizeof error, e.what());
    errc = static_cast<uint32_t>(e.code());
    __atomic_store_n(&has_error, 1u, __ATOMIC_RELEASE);
  }
  if (e.code() == Errc::gone) device_lost = 1;
  __atomic_store_n(&state, how, __ATOMIC_RELEASE);
}

std::vector<WorkerId> workers_of(const Plan& plan) {
  std::vector<WorkerId> ids;
  for (unsigned j = 0; j < plan.jobs.size(); ++j) {
    const Job& job = plan.jobs[j];
    unsigned devices = job.target == Target::device ? static_cast<unsigned>(job.devices.size()) : 1;
    unsigned senders = job.processes * job.threads;
    for (unsigned d = 0; d < devices; ++d)
      for (unsigned p = 0; p < job.processes; ++p)
        for (unsigned t = 0; t < job.threads; ++t) ids.push_back({j, p, d, t, p * job.threads + t, senders});
  }
  if (ids.size() > most_workers)
    throw Error({Errc::usage, "plan", plan.source, fmt::format("{} threads of load", ids.size()),
                 fmt::format("at most {}: lower threads, processes or devices", most_workers), 0});
  return ids;
}

Ledger::Ledger(const Plan& plan)
    : ids_(workers_of(plan)), fd_(make_memfd("kz-load", ledger_bytes(ids_.size()), true)) {
  map();
}

Ledger::Ledger(const Plan& plan, Fd shared) : ids_(workers_of(plan)), fd_(std::move(shared)) { map(); }

void Ledger::map() {
  memory_ = Mapping(fd_.get(), 0, ledger_bytes(ids_.size()), true, "the books of the load");
  head_ = reinterpret_cast<Head*>(memory_.data());
  accounts_ = reinterpret_cast<WorkerAccount*>(memory_.data() + head_bytes);
}

void Ledger::detach() {
  Mapping shared = std::move(memory_);
  fd_ = make_memfd("kz-load-copy", ledger_bytes(ids_.size()), true);
  map();
  std::ranges::copy(shared.bytes(), memory_.data());
}

bool Ledger::settle(unsigned process, Cancel why) {
  bool cut_off = false;
  for (size_t w = 0; w < ids_.size(); ++w) {
    WorkerAccount& a = accounts_[w];
    if (ids_[w].process != process) continue;
    auto s = state(w);
    if (s == WorkerAccount::ended || s == WorkerAccount::failed_to_start || s == WorkerAccount::broke_off)
      continue;
    cut_off = true;
    if (a.began_ns != 0 && a.ended_ns == 0)
      a.ended_ns = static_cast<uint64_t>(Clock::now().time_since_epoch().count());
    for (OpAccount& op : a.ops) {
      a.cancelled_by[static_cast<size_t>(why)] += op.outstanding();
      op.cancelled += op.outstanding();
    }
  }
  return cut_off;
}

}  // namespace kz::load
