// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/test.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "shim/base/host_load.h"
#include "shim/uapi/kz_regs.h"
#include "tests/harness/diagnose.h"
#include "tests/harness/pattern.h"
#include "tests/harness/registry.h"
#include "tests/harness/session.h"
#include "tests/harness/snapshot.h"

namespace kz::test {
namespace {

constexpr auto kReturn = 3s;  // in which a lost device answers again, and once more in which it comes up

bool has_label(const TestInfo& info, std::string_view label) {
  return std::find(info.labels.begin(), info.labels.end(), label) != info.labels.end();
}

// A failed open is the host's trouble where the host refused, and the device's where it does not answer as it
// should.
bool host_to_blame(Errc code) {
  switch (code) {
    case Errc::gone:
    case Errc::timeout:
    case Errc::protocol:
    case Errc::status:
    case Errc::bad_data:
      return false;
    default:
      return true;
  }
}

void report_forbidden(const Session::Audited& audited) {
  const QueueAudit& a = audited.audit;
  const std::pair<const char*, uint64_t> fields[] = {
      {"completion_without_interrupt", a.completion_without_interrupt},
      {"interrupt_without_completion", a.interrupt_without_completion},
      {"duplicate_completion", a.duplicate_completion},
      {"unknown_completion", a.unknown_completion},
      {"wrong_queue", a.wrong_queue},
      {"bad_sq_head", a.bad_sq_head},
      {"bad_phase", a.bad_phase},
      {"reserved_set", a.reserved_set}};
  for (const auto& [field, count] : fields) {
    if (count == 0) continue;
    evidence(ev::audit, {{"field", field}, {"count", count}, {"queue", audited.queue}});
    ADD_FAILURE() << "queue " << audited.queue << ": " << field << " is " << count << ", must be 0";
  }
}

// A call of the device itself did not end: contexts and memory go over a queue of the driver's own, which
// only such calls can try again.
Stall stalled_admin(Device& device, const Error& e) {
  Stall stall{.command = e.info().operation};
  try {
    device.create_context();
    stall.same_queue = "complete";
  } catch (const Error& again) {
    if (again.code() == Errc::timeout) stall.same_queue = "stuck";
  }
  return stall;
}

}  // namespace

struct DeviceTest::State {
  const TestInfo* info = nullptr;
  std::string id, uri;
  std::unique_ptr<Device> device;
  Snapshot before;
  Expected expected;
  bool ready = false;  // SetUp went through: the body may run
  std::mt19937_64 rng;
};

DeviceTest::DeviceTest() : state_(std::make_unique<State>()) {}
DeviceTest::~DeviceTest() = default;

Device& DeviceTest::device() {
  if (!state_->device)
    throw Error({.code = Errc::usage, .operation = "use the device", .detail = "the test has closed it"});
  return *state_->device;
}
const Capabilities& DeviceTest::caps() { return device().capabilities(); }
std::mt19937_64& DeviceTest::rng() { return state_->rng; }
uint64_t DeviceTest::seed() const { return Session::get().seed(); }
double DeviceTest::scale() const { return Session::get().scale(); }
void DeviceTest::expect_reset() { state_->expected.reset = true; }
void DeviceTest::expect_ecc() { state_->expected.ecc = true; }
void DeviceTest::expect_hbm_use() { state_->expected.hbm = true; }
const std::string& DeviceTest::device_uri() const { return state_->uri; }

void DeviceTest::bring_up() {
  auto& session = Session::get();
  state_->device = open_device(state_->uri, {.run_dir = session.run_dir()});
  session.device = state_->device.get();
}

void DeviceTest::need_lasting_device() {
  if (state_->uri.starts_with("softtpu:"))
    skip("the device ends with its client; give one that stays (vfio-user:/path)");
}

void DeviceTest::close_device() {
  need_lasting_device();
  expect_reset();
  Session::get().device = nullptr;
  state_->device.reset();
}

void DeviceTest::reopen_device() {
  // The server may still be busy with the last client's end.
  for (Deadline deadline(5s);; std::this_thread::yield()) {
    try {
      bring_up();
      return;
    } catch (const Error& e) {
      if (e.code() != Errc::busy || deadline.passed()) throw;
    }
  }
}

void DeviceTest::SetUp() {
  auto& session = Session::get();
  const auto* running = ::testing::UnitTest::GetInstance()->current_test_info();
  state_->info = find_declaration(running->test_suite_name(), running->name());
  state_->id = test_id(running->test_suite_name(), running->name());
  state_->uri = session.uri();
  state_->rng.seed(mix(session.seed(), crc32c(std::as_bytes(std::span(state_->id)))));
  if (!state_->info) {
    ADD_FAILURE() << state_->id << " is not declared with KZ_TEST";
    return;
  }
  if (has_label(*state_->info, "host") || has_label(*state_->info, "kernel")) {
    state_->ready = true;
    return;
  }
  try {
    bring_up();
    for (Cap cap : state_->info->needs) {
      if (caps().has(cap)) continue;
      const auto& blocked = caps().blocked;
      if (auto it = blocked.find(cap); it != blocked.end())
        block(fmt::format("{}: {}", to_string(cap), it->second));
      auto why = caps().why_not.find(cap);
      skip(fmt::format("the device has no {}{}", to_string(cap),
                       why == caps().why_not.end() ? "" : ": " + why->second));
    }
    state_->before = take_snapshot(device());
    session.send({{"type", "snapshot"}, {"when", "before"}, {"data", to_json(state_->before)}});
    state_->ready = true;
  } catch (const EndTest& end) {
    session.set_end(end);
  } catch (const Error& e) {
    if (host_to_blame(e.code())) return session.set_end({Verdict::blocked, e.what()});
    if (e.code() == Errc::timeout)
      evidence(ev::reset, {{"kind", "bring_up"}, {"what", "never_ready"}, {"ms", -1}});
    else if (e.code() == Errc::status)
      evidence(ev::status_wrong,
               {{"command", e.info().operation}, {"expected", "ok"}, {"got", e.info().detail}});
    else
      report_absent(e, [this]() -> Device& {
        bring_up();
        return device();
      });
    ADD_FAILURE() << "the device does not come up: " << e.what();
  }
}

void DeviceTest::TestBody() {
  if (!state_->ready) return;
  auto& session = Session::get();
  try {
    body();
  } catch (const EndTest& end) {
    session.set_end(end);
  } catch (const Error& e) {
    on_error(e);
  } catch (const std::exception& e) {
    ADD_FAILURE() << "the test ended with an exception: " << e.what();
  }
}

void DeviceTest::on_error(const Error& e) {
  auto& session = Session::get();
  const auto stall = session.take_stall();
  switch (e.code()) {
    case Errc::unsupported:
      return session.set_end({Verdict::skip, e.what()});
    case Errc::permission:
      return session.set_end({Verdict::blocked, e.what()});
    case Errc::gone:
      if (state_->device && !report_lost(device(), stall.has_value(), kReturn)) session.set_lost(e.what());
      break;
    case Errc::timeout:
      if (state_->device && !session.has_evidence(ev::no_completion) && !session.has_evidence(ev::reset))
        report_stall(device(), stall ? *stall : stalled_admin(device(), e));
      break;
    case Errc::no_memory:
      evidence(ev::alloc_wrong, {{"asked", e.info().target}, {"expected", "ok"}, {"got", "no_memory"}});
      break;
    case Errc::status:
      if (!session.has_evidence(ev::status_wrong) && !session.has_evidence(ev::ecc))
        evidence(ev::status_wrong,
                 {{"command", e.info().operation}, {"expected", "ok"}, {"got", e.info().detail}});
      break;
    default:
      break;
  }
  ADD_FAILURE() << e.what();
}

void DeviceTest::judge() {
  auto& session = Session::get();
  auto& before = state_->before;
  Snapshot after = take_snapshot(device());
  // The block is rewritten every 100 ms: a counter that a destroyed context frees may show late.
  auto behind = [&] {
    return after.telemetry.hbm_free < before.telemetry.hbm_free ||
           after.telemetry.contexts > before.telemetry.contexts;
  };
  if (behind() && !state_->expected.hbm)
    seen_within(400ms, [&] {
      after = take_snapshot(device());
      return !behind();
    });
  session.send({{"type", "snapshot"}, {"when", "after"}, {"data", to_json(after)}});
  if (after.telemetry.all_ones && caps().has(Cap::registers) && device().read_register(KZ_REG_MAGIC) == ~0u)
    throw Error({.code = Errc::gone,
                 .operation = "look at",
                 .target = "the device",
                 .detail = "registers read all ones"});
  for (const auto& f : judge_difference(before, after, caps().limits, state_->expected, state_->id)) {
    evidence(f.kind, f.detail);
    if (f.fails)
      ADD_FAILURE() << f.text;
    else
      warn(f.text);
  }
  if (!after.telemetry.all_ones && heartbeat_state(device()) == "stopped") {
    evidence(ev::telemetry, {{"what", "heartbeat_stopped"}, {"field", "heartbeat"}});
    ADD_FAILURE() << "the firmware's heartbeat stopped";
  }
  if (const auto fatal = fatal_code(device())) {
    if (!session.has_evidence(ev::spontaneous_reset))
      evidence(ev::spontaneous_reset, {{"reason", *fatal}, {"during", state_->id}});
    ADD_FAILURE() << "the firmware gave up, fatal code " << *fatal;
  }
}

void DeviceTest::TearDown() {
  auto& session = Session::get();
  for (const auto& audited : session.take_audits()) report_forbidden(audited);
  try {
    if (state_->ready && state_->device && !session.lost()) judge();
  } catch (const Error& e) {
    if (e.code() == Errc::gone) {
      if (!report_lost(device(), false, kReturn)) session.set_lost(e.what());
    }
    ADD_FAILURE() << "after the test: " << e.what();
  }
  session.device = nullptr;
  try {
    state_->device.reset();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "closing the device: " << e.what();
  }
}

void evidence(std::string_view kind, const nlohmann::json& detail) { Session::get().evidence(kind, detail); }

void metric(std::string_view name, double value, std::string_view unit) {
  Session::get().send({{"type", "metric"}, {"name", name}, {"value", value}, {"unit", unit}});
}

void before_danger(std::string_view step) {
  Session::get().send_and_wait({{"type", "danger"}, {"step", step}});
}
void expect_log(const std::string& text, unsigned long taint) {
  Session::get().send({{"type", "expect-log"}, {"text", text}, {"taint", taint}});
}
void expect_report(const std::string& text) {
  Session::get().send({{"type", "expect-log"}, {"text", text}, {"report", true}});
}
void block(const std::string& reason) { throw EndTest{Verdict::blocked, reason}; }
void skip(const std::string& reason) { throw EndTest{Verdict::skip, reason}; }
void warn(const std::string& reason) { Session::get().add_warning(reason); }

}  // namespace kz::test
