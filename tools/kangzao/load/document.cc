// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/kangzao/load/document.h"

#include <fmt/format.h>

#include "shim/load/report.h"
#include "tools/report/terminal.h"

namespace kz {
namespace {

using load::kOps;
using load::Op;
using load::OpAccount;
using load::Sum;
using nlohmann::json;

double in_us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

json latency_json(const load::Histogram& h) {
  return {
      {"min", in_us(h.min())},          {"p50", in_us(h.quantile(0.5))},     {"p90", in_us(h.quantile(0.9))},
      {"p99", in_us(h.quantile(0.99))}, {"p99.9", in_us(h.quantile(0.999))}, {"max", in_us(h.max())},
      {"mean", h.mean() / 1e3}};
}

json account_json(const OpAccount& a, double seconds) {
  json out = {{"sent", a.sent},
              {"completed", a.completed},
              {"failed", a.failed},
              {"cancelled", a.cancelled},
              {"lost", a.lost},
              {"bytes", a.bytes},
              {"verified", a.verified},
              {"wrong", a.mismatched},
              {"per_second", seconds > 0 ? static_cast<double>(a.completed) / seconds : 0.0}};
  if (a.latency.count() > 0) out["latency_us"] = latency_json(a.latency);
  return out;
}

json by_name(const Sum& s) {
  json failed = json::object(), cancelled = json::object();
  for (size_t i = 0; i < load::kStatuses; ++i)
    if (s.failed_by[i] != 0) failed[load::status_name(i)] = s.failed_by[i];
  for (size_t i = 0; i < load::kCancels; ++i)
    if (s.cancelled_by[i] != 0)
      cancelled[std::string(to_string(static_cast<load::Cancel>(i)))] = s.cancelled_by[i];
  return {{"failed_by", failed}, {"cancelled_by", cancelled}};
}

json sum_json(const Sum& s) {
  json out = account_json(s.all, s.seconds);
  out.update(by_name(s));
  out["threads"] = s.threads;
  out["queue_faults"] = s.queue_faults;
  out["findings"] = s.findings;
  out["back_pressure"] = {{"late", s.late},
                          {"latest_us", in_us(s.late_max_ns)},
                          {"backlog_max", s.backlog_max},
                          {"not_started", s.not_started},
                          {"ring_full", s.ring_full}};
  return out;
}

json job_json(const load::Job& job, unsigned number, const load::Ledger& ledger) {
  auto sum = load::add_up(ledger, [&](const load::WorkerId& w) { return w.job == number; });
  json out = sum_json(*sum);
  out["name"] = job.name;
  out["loop"] = job.open_loop ? "open" : "closed";
  if (job.open_loop) out["rate"] = job.rate;
  out["seconds"] = sum->seconds;
  out["ops"] = json::object();
  for (size_t o = 0; o < kOps; ++o)
    if (sum->ops[o].sent != 0 || sum->ops[o].latency.count() != 0)
      out["ops"][to_string(static_cast<Op>(o))] = account_json(sum->ops[o], sum->seconds);
  out["devices"] = json::array();
  if (job.target != load::Target::device) return out;
  for (unsigned d = 0; d < job.devices.size(); ++d) {
    auto part =
        load::add_up(ledger, [&](const load::WorkerId& w) { return w.job == number && w.device == d; });
    json one = account_json(part->all, part->seconds);
    one["device"] = job.devices[d];
    out["devices"].push_back(one);
  }
  return out;
}

std::string us_text(const json& latency, const char* key) {
  if (!latency.is_object()) return "-";
  double us = latency.at(key).get<double>();
  return us < 100      ? fmt::format("{:.2f}", us)
         : us < 10'000 ? fmt::format("{:.0f}", us)
                       : fmt::format("{:.4g}k", us / 1e3);
}

constexpr const char* row_format =
    "{:<12} {:<10} {:>10} {:>10} {:>8} {:>10} {:>6} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n";

std::string row(const std::string& job, const std::string& op, const json& a) {
  const json none, &l = a.contains("latency_us") ? a["latency_us"] : none;
  auto n = [&](const char* key) { return a.at(key).get<uint64_t>(); };
  return fmt::format(row_format, job, op, n("sent"), n("completed"), n("failed"), n("cancelled"), n("lost"),
                     fmt::format("{:.4g}", a.at("per_second").get<double>()), us_text(l, "min"),
                     us_text(l, "p50"), us_text(l, "p90"), us_text(l, "p99"), us_text(l, "p99.9"),
                     us_text(l, "max"));
}

std::string names(const json& counts) {
  std::string out;
  for (const auto& [name, n] : counts.items())
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", printable(name), n.get<uint64_t>());
  return out.empty() ? "" : " (" + out + ")";
}

}  // namespace

json load_sample(const load::Ledger& ledger, double seconds) {
  json out = {{"seconds", seconds}};
  std::map<std::string, uint64_t> n;
  for (size_t w = 0; w < ledger.workers().size(); ++w) {
    const auto& a = ledger.account(w);
    for (const auto& op : a.ops) {
      n["sent"] += load::peek(op.sent);
      n["completed"] += load::peek(op.completed);
      n["failed"] += load::peek(op.failed);
      n["cancelled"] += load::peek(op.cancelled);
      n["lost"] += load::peek(op.lost);
    }
    n["late"] += load::peek(a.late);
    n["backlog_max"] += load::peek(a.backlog_max);
  }
  out.update(json(n));
  return out;
}

json load_document(const LoadRequest& request, const LoadOutcome& outcome) {
  auto all = load::add_up(*outcome.ledger);
  json out = {{"schema", 1},
              {"source", request.plan.source},
              {"seconds", all->seconds},
              {"processes", request.plan.processes()},
              {"io_wq_workers", outcome.ledger->io_workers()},
              {"interrupted", outcome.interrupted},
              {"balanced", all->balanced()},
              {"total", sum_json(*all)},
              {"jobs", json::array()},
              {"exit", outcome.exit_code()},
              {"reasons", load_reasons(outcome)}};
  for (unsigned j = 0; j < request.plan.jobs.size(); ++j)
    out["jobs"].push_back(job_json(request.plan.jobs[j], j, *outcome.ledger));
  return out;
}

std::string load_table(const json& d) {
  std::string out = fmt::format(row_format, "JOB", "OPERATION", "SENT", "COMPLETED", "FAILED", "CANCELLED",
                                "LOST", "PER SECOND", "MIN us", "P50", "P90", "P99", "P99.9", "MAX");
  for (const json& job : d.at("jobs")) {
    auto name = printable(job.at("name").get<std::string>());
    for (const auto& [op, account] : job.at("ops").items())
      out += row(std::exchange(name, ""), printable(op), account);
    const json& b = job.at("back_pressure");
    if (job.at("loop") == "open")
      out += fmt::format(
          "{:<12} {}: {} started late, the latest by {} us; backlog up to {}; {} due but never started; {} "
          "times no room in the ring\n",
          "", "back-pressure", b.at("late").get<uint64_t>(), us_text(b, "latest_us"),
          b.at("backlog_max").get<uint64_t>(), b.at("not_started").get<uint64_t>(),
          b.at("ring_full").get<uint64_t>());
    for (const json& f : job.at("findings"))
      out += "             found: " + printable(f.get<std::string>()) + "\n";
  }
  const json& t = d.at("total");
  auto n = [&](const char* key) { return t.at(key).get<uint64_t>(); };
  out += fmt::format(
      "\n{:.2f} s: {} sent = {} completed + {} failed{} + {} cancelled{} + {} lost; {} verified, {} wrong; "
      "{} io_uring "
      "worker threads\n",
      d.at("seconds").get<double>(), n("sent"), n("completed"), n("failed"), names(t.at("failed_by")),
      n("cancelled"), names(t.at("cancelled_by")), n("lost"), n("verified"), n("wrong"),
      d.at("io_wq_workers").get<uint64_t>());
  return out;
}

std::vector<std::string> load_reasons(const LoadOutcome& outcome) {
  std::vector<std::string> out = outcome.troubles;
  if (outcome.interrupted) out.emplace_back("interrupted");
  auto s = load::add_up(*outcome.ledger);
  out.insert(out.end(), s->errors.begin(), s->errors.end());
  auto add = [&](uint64_t n, const std::string& text) {
    if (n != 0) out.push_back(fmt::format("{} {}", n, text));
  };
  json by = by_name(*s);
  add(s->all.failed, "operations failed" + names(by["failed_by"]));
  add(s->all.cancelled, "operations were cancelled" + names(by["cancelled_by"]));
  add(s->all.lost, "operations were lost");
  add(s->all.mismatched, "results were wrong");
  add(s->not_started, "operations were due and never started");
  add(s->queue_faults, "faults in the books of the queues");
  if (!s->balanced()) out.emplace_back("the books do not balance");
  if (out.empty() && s->all.completed == 0) out.emplace_back("nothing was completed");
  return out;
}

}  // namespace kz
